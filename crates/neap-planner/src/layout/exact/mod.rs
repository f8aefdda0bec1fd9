//! Exact search for a layout of one part within a capacity.
//!
//! Any layout can be pushed down until every block lies at 0 or directly on another. The search is for one
//! of these. A node of it knows, for each block still to place, the lowest offset that it can have:
//!
//! ```text
//!   address
//!     ▲ ┌──────┐     ┌─────      floor of a section: the lowest offset of any block still to place there
//!     │ │      │ ▁▁▁ │           valley: sections of one floor, between higher ones
//!     │ │      ├─────┴────┐
//!     └─┴──────┴──────────┴──► section
//! ```
//!
//! A block whose lowest offset is the floor of a valley lies wholly in the valley, and nothing fits below
//! it. Either it lies exactly there (the left branch), or on a block that is still to place (the right
//! branch, which raises its lowest offset). The section with the fewest candidates is decided first.
//!
//! - A node is dead when the blocks of a section, none below its lowest offset, do not fit the capacity.
//! - A block that takes nothing from those around it is placed without an alternative.
//! - Sections that no block still to place joins are solved apart.
//! - Dead states are remembered. What one says, that its blocks cannot all be placed at or above their
//!   lowest offsets, is true whatever lies below, so it holds after a restart, too.
//!
//! Restarts change which candidates are tried first, and remember in which sections nodes died.

mod dead;
mod state;

use super::effort::Effort;
use super::sections::Item;
use dead::DeadStates;
pub use dead::scramble;
use state::{Conflict, State};

/// Deaths before the first restarts; doubled when every order had its turns.
const DEATHS: u64 = 250;
const TURNS: u64 = 4;

/// How a search, or part of one, ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// By item.
    Offsets(Vec<u64>),
    /// There is no layout within the capacity.
    Impossible,
    /// The effort is spent.
    Nothing,
}

/// Orders in which candidates are tried.
#[derive(Clone, Copy)]
enum Order {
    Length,
    Area,
    Bytes,
    Pressure,
}

const ORDERS: [Order; 4] = [Order::Length, Order::Area, Order::Bytes, Order::Pressure];

/// Goes on where it was left.
pub struct Search {
    state: State,
    dead: DeadStates,
    /// By item: its place in the order of trying.
    rank: Vec<u32>,
    restarts: u64,
    impossible: bool,
}

/// A set of sections that unplaced items join, and the item that its search decides now.
struct Node {
    lo: usize,
    hi: usize,
    /// Where the range ends of which this is one part.
    range_end: usize,
    key: u128,
    mark: usize,
    item: usize,
    forced: bool,
}

enum Round {
    Solved,
    Dead,
    Restart,
    Spent,
}

impl Search {
    /// Whether a search over so much is within reach; it needs bit sets of items by section and by item.
    pub fn can_take(items: usize, sections: usize) -> bool {
        items <= 4096 && items.div_ceil(64) * (items + sections) <= 1 << 20
    }

    /// For the sections `0..sections` that the items live in.
    pub fn new(items: &[Item], sections: usize, capacity_bytes: u64) -> Self {
        let mut state = State::new(items, sections, capacity_bytes);
        let impossible = state.start().is_err();
        Self {
            rank: vec![0; items.len()],
            state,
            dead: DeadStates::new(),
            restarts: 0,
            impossible,
        }
    }

    pub fn run(&mut self, effort: &mut Effort<'_>) -> Found {
        if self.impossible {
            return Found::Impossible;
        }
        let root = self.state.mark();
        loop {
            let turn = self.restarts / ORDERS.len() as u64;
            self.order(ORDERS[(self.restarts % ORDERS.len() as u64) as usize], turn);
            let round = self.round(DEATHS << (turn / TURNS).min(32), effort);
            if let Round::Solved = round {
                let offsets = self.state.offsets();
                self.state.undo(root);
                return Found::Offsets(offsets);
            }
            self.state.undo(root);
            match round {
                Round::Solved | Round::Restart => self.restarts += 1,
                Round::Dead => {
                    self.impossible = true;
                    return Found::Impossible;
                }
                Round::Spent => {
                    // The next call shall not repeat this one.
                    self.restarts += 1;
                    return Found::Nothing;
                }
            }
        }
    }

    /// One search from the root, with an explicit stack: it is as deep as there are items.
    fn round(&mut self, mut deaths_left: u64, effort: &mut Effort<'_>) -> Round {
        let mut path: Vec<Node> = Vec::new();
        let (mut from, mut range_end) = (0, self.state.sections());
        loop {
            let mut alive = match self.state.next_part(from, range_end) {
                Some((lo, hi)) => {
                    let key = self.state.key(lo, hi);
                    let known = self.dead.contains(key);
                    if !known {
                        path.push(Node {
                            lo,
                            hi,
                            range_end,
                            key,
                            mark: 0,
                            item: 0,
                            forced: false,
                        });
                    }
                    !known && self.decide(&mut path)
                }
                // All of a range is solved, and so the node is that left it; what follows it is next.
                None => match path.pop() {
                    Some(node) => {
                        (from, range_end) = (node.hi, node.range_end);
                        continue;
                    }
                    None => return Round::Solved,
                },
            };
            // The last decision did not work out: decide otherwise, here or further up.
            while !alive {
                if deaths_left == 0 {
                    return Round::Restart;
                }
                deaths_left -= 1;
                match self.turn_back(&mut path) {
                    Some(goes_on) => alive = goes_on && self.decide(&mut path),
                    None => return Round::Dead,
                }
            }
            if !effort.take(self.state.take_work()) {
                return Round::Spent;
            }
            if let Some(node) = path.last() {
                (from, range_end) = (node.lo, node.hi);
            }
        }
    }

    /// Places an item in the last node's sections. Whether it can be.
    fn decide(&mut self, path: &mut [Node]) -> bool {
        let Some(node) = path.last_mut() else {
            return true;
        };
        let Some((item, forced)) = self.state.choose(node.lo, node.hi, &self.rank) else {
            return true;
        };
        node.item = item;
        node.forced = forced;
        node.mark = self.state.mark();
        self.state.place(item).is_ok()
    }

    /// Leaves the left branch of the last node for the right one; if that is dead as well, the node ends.
    /// Whether the last node goes on; `None` when there is none left.
    fn turn_back(&mut self, path: &mut Vec<Node>) -> Option<bool> {
        let node = path.last_mut()?;
        self.state.undo(node.mark);
        if !node.forced && self.state.refute(node.item) != Err(Conflict) {
            let key = self.state.key(node.lo, node.hi);
            if !self.dead.contains(key) {
                return Some(true);
            }
        }
        self.dead.insert(node.key);
        path.pop();
        (!path.is_empty()).then_some(false)
    }

    /// Ranks items; from the second turn on with some noise.
    fn order(&mut self, order: Order, turn: u64) {
        let items = self.state.items();
        let loads = self.state.loads();
        let key = |i: usize| {
            let item = &items[i];
            let (bytes, length) = (u128::from(item.bytes), u128::from(item.length));
            let (first, second) = match order {
                Order::Length => (length, bytes),
                Order::Area => (length * bytes, bytes),
                Order::Bytes => (bytes, length),
                Order::Pressure => {
                    let sections = item.lo as usize..item.hi as usize;
                    let most = loads[sections].iter().max().copied().unwrap_or(0);
                    (u128::from(most), length * bytes)
                }
            };
            let noise = match turn {
                0 => 16,
                _ => 12 + u128::from(scramble(turn ^ scramble(i as u64)) % 8),
            };
            // Lengths have 32 bits and loads fit 63, so this does not overflow.
            (first * noise, second)
        };
        let mut by_rank: Vec<_> = (0..items.len()).map(|i| (key(i), i)).collect();
        by_rank.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        for (rank, (_, i)) in by_rank.into_iter().enumerate() {
            self.rank[i] = rank as u32;
        }
    }
}
