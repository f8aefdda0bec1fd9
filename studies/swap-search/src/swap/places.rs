//! Memory with addresses: each tensor has a contiguous place, and what lies together must go together.
//!
//! ```text
//!   0                                                                        capacity
//!   │ A1 │  free  │ W7 │ A4 (used by this operator) │ free │ W2 │ W5 │  free  │
//!        ├────── a place for W8: W7 goes ──┤✗               ├── W2 goes ──┤
//! ```
//!
//! A place begins (or, from the top down, ends) where a segment does. Of all places the one is taken that is
//! cheapest: sending a byte away costs the more the sooner it is used again, twice that where it must be stored
//! first; and memory that was in use until just now costs, since a load would have to wait for it.
//!
//! Not all places are looked at. One that is free as a whole costs nothing; there are few free segments, and
//! mostly one is large enough. Otherwise, places that hold any free segment are priced, and then those
//! around the tensors that are cheapest to send away, the cheapest byte first: as soon as all bytes at that price
//! are dearer than the best place so far, nothing better follows.

use super::leavers::Leavers;
use super::planner::Wish;
use super::scan::Scan;
use super::segments::{END, NOBODY, Place, Segment, Segments};
use super::{After, PlaceRules, Rules, Side};

/// Tensors around which places are priced. More find hardly better places, and take time.
const MOST_AROUND: usize = 16;

/// What it means to have a segment.
#[derive(Clone, Copy)]
struct Price {
    /// Infinite where it cannot be had.
    cost: f64,
    /// A load would have to wait for it.
    is_late: bool,
}

/// Prices of neighbouring segments together.
#[derive(Default)]
struct Window {
    cost: f64,
    /// How many there are that cost anything: with none left, the sum is exactly 0.
    priced: u32,
    late: u32,
}

impl Window {
    fn add(&mut self, price: &Price) {
        self.late += u32::from(price.is_late);
        self.priced += u32::from(price.cost > 0.0);
        self.cost += price.cost;
    }

    fn remove(&mut self, price: &Price) {
        self.late -= u32::from(price.is_late);
        self.priced -= u32::from(price.cost > 0.0);
        self.cost = match self.priced {
            0 => 0.0,
            _ => self.cost - price.cost,
        };
    }
}

/// The best place so far.
struct Best {
    cost: f64,
    /// Of two that cost the same, the one that is free earlier.
    tie: u32,
    place: Option<Place>,
}

impl Best {
    fn is_beaten_by(&self, cost: f64, tie: u32, offset: u64, from_top: bool) -> bool {
        let lies_better = |old: &Place| match from_top {
            true => offset > old.offset,
            false => offset < old.offset,
        };
        let is_tied = cost == self.cost && tie == self.tie;
        (cost, tie) < (self.cost, self.tie)
            || is_tied && self.place.as_ref().is_some_and(lies_better)
    }
}

#[derive(Default)]
pub struct Places {
    pub segments: Segments,
    leavers: Leavers,
    /// By positions until its next use, what sending a byte away costs.
    sooner: Vec<f64>,
    /// So many choices were made.
    choices: u64,
}

/// One choice: what is asked for.
struct Choice<'a> {
    scan: &'a Scan,
    wish: &'a Wish,
    /// See [`Places::sooner`].
    sooner: &'a [f64],
    late: f64,
    from_top: bool,
    now_ns: f64,
    next_store: u32,
}

impl Choice<'_> {
    /// What a byte costs whose tensor is used next at `key`.
    fn byte_cost(&self, key: u32, stores: bool) -> f64 {
        let distance = key.saturating_sub(self.wish.position).max(1) as usize;
        let sooner = self.sooner[distance.min(self.sooner.len() - 1)];
        if stores { 2.0 * sooner } else { sooner }
    }

    fn price(&self, segment: &Segment) -> Price {
        let Self { scan, wish, .. } = self;
        if segment.owner == NOBODY {
            let since_ns = scan.elapsed_ns[segment.after.computes as usize];
            let waits = wish.loads || segment.after.stores > 0;
            return Price {
                cost: 0.0,
                is_late: waits && self.now_ns - since_ns < wish.wait_ns,
            };
        }
        let state = &scan.states[segment.owner as usize];
        if state.is_pinned(wish.position) {
            return Price {
                cost: f64::INFINITY,
                is_late: false,
            };
        }
        let stores = state.stores();
        let bytes = (segment.end - segment.begin) as f64;
        Price {
            cost: bytes * self.byte_cost(state.key, stores),
            is_late: (wish.loads || stores)
                && !scan.is_old(segment.owner as usize, wish.position, wish.wait_ns),
        }
    }

    /// When the segment is free, if it is taken.
    fn after(&self, segment: &Segment) -> After {
        if segment.owner == NOBODY {
            return segment.after;
        }
        let state = &self.scan.states[segment.owner as usize];
        After {
            computes: if state.unused { 0 } else { state.last_use + 1 },
            stores: if state.stores() { self.next_store } else { 0 },
        }
    }
}

impl Places {
    /// For schedules of so many operators.
    pub fn set_rules(&mut self, operators: usize, rules: &PlaceRules) {
        let sooner = |distance: usize| operators as f64 / distance.max(1) as f64;
        let sooner = (0..2 * operators + 2).map(|d| sooner(d).powi(i32::from(rules.far_power)));
        self.sooner.clear();
        self.sooner.extend(sooner);
    }

    /// All of memory is free, but for the tensors of `initial`, with their offsets and what they take.
    pub fn reset(&mut self, capacity_bytes: u64, tensors: usize, initial: &mut [(u64, u64, u32)]) {
        self.leavers.clear();
        self.choices = 0;
        self.segments.reset(capacity_bytes, tensors, initial);
    }

    /// Gives a tensor a place, and says since when that is free. `None` when there is none: what the operator
    /// has already lies in the way.
    pub fn allocate(
        &mut self,
        scan: &mut Scan,
        wish: &Wish,
        rules: &Rules,
    ) -> Option<(After, u64)> {
        if wish.takes == 0 {
            return Some((After::default(), 0));
        }
        let place = self.choose(scan, wish, rules)?;
        self.clear(scan, place, wish.takes);
        Some((
            self.segments.occupy(place, wish.takes, wish.tensor.0),
            place.offset,
        ))
    }

    /// Takes a place whoever lies there, and says since when it is free. `None` where one of the operator's own does.
    pub fn take(
        &mut self,
        scan: &mut Scan,
        offset: u64,
        bytes: u64,
        tensor: u32,
        position: u32,
    ) -> Option<After> {
        if bytes == 0 {
            return Some(After::default());
        }
        let place = self.segments.at(offset);
        let mut at = place.segment;
        while at != END && self.segments[at].begin < offset + bytes {
            let Segment { owner, above, .. } = self.segments[at];
            if owner != NOBODY && scan.states[owner as usize].is_pinned(position) {
                return None;
            }
            at = above;
        }
        self.clear(scan, place, bytes);
        Some(self.segments.occupy(place, bytes, tensor))
    }

    /// The cheapest place for `wish`, of those that are looked at.
    pub fn choose(&mut self, scan: &Scan, wish: &Wish, rules: &Rules) -> Option<Place> {
        let from_top = match rules.places.side {
            Side::Nobody => false,
            Side::Loads => wish.loads,
            Side::Below(bytes) => wish.takes < bytes,
        };
        self.choices += 1;
        let sooner = std::mem::take(&mut self.sooner);
        let choice = Choice {
            scan,
            wish,
            sooner: &sooner,
            late: rules.places.late_penalty * wish.takes as f64,
            from_top,
            now_ns: scan.elapsed_ns[wish.position as usize],
            next_store: scan.plan.stores.len() as u32 + 1,
        };
        let mut best = Best {
            cost: f64::INFINITY,
            tie: 0,
            place: None,
        };
        for i in 0..self.segments.free.len() {
            self.try_free(&choice, self.segments.free[i], &mut best);
        }
        if best.cost > 0.0 {
            self.try_taken(&choice, &mut best);
        }
        self.sooner = sooner;
        best.place
    }

    /// Prices places in which somebody lies.
    fn try_taken(&mut self, choice: &Choice, best: &mut Best) {
        for i in 0..self.segments.free.len() {
            self.try_around(choice, self.segments.free[i], best);
        }
        let takes = choice.wish.takes as f64;
        let mut leavers = std::mem::take(&mut self.leavers);
        let byte_cost = |key, stores| choice.byte_cost(key, stores);
        let mut around = 0;
        while let Some((cost, tensor)) = leavers.next(choice.scan, choice.wish.position, byte_cost)
        {
            // While nothing is found, all are tried.
            let is_enough = around >= MOST_AROUND && best.place.is_some();
            if is_enough || cost * takes >= best.cost {
                break;
            }
            around += 1;
            self.try_around(choice, self.segments.segment_of(tensor), best);
        }
        leavers.put_back();
        self.leavers = leavers;
    }

    /// Prices the place that starts at a free segment, if nothing but free memory is in it.
    fn try_free(&mut self, choice: &Choice, first: u32, best: &mut Best) {
        let mut last = first;
        while self.segments.reach(choice.from_top, first, last) < choice.wish.takes {
            last = self.segments.onward(choice.from_top, last);
            if last == END || self.segments[last].owner != NOBODY {
                return;
            }
        }
        self.compare(choice, first, best);
    }

    /// Prices all places that hold some of the segment, but for those priced before.
    fn try_around(&mut self, choice: &Choice, segment: u32, best: &mut Best) {
        let (top, takes) = (choice.from_top, choice.wish.takes);
        // What lies from the start of the place to the end of the segment, all of which would go.
        let mut cost = self.price(choice, segment).cost;
        if cost > best.cost || cost.is_infinite() {
            return;
        }
        let (mut first, mut before, mut end) = (segment, segment, END);
        loop {
            if self.segments[before].tried_in != self.choices {
                first = before;
                if end == END {
                    end = before;
                }
            }
            before = self.segments.onward(!top, before);
            if before == END || self.segments.distance(top, before, segment) >= takes {
                break;
            }
            cost += self.price(choice, before).cost;
            if cost > best.cost || cost.is_infinite() {
                break;
            }
        }
        if end == END {
            return;
        }
        // Both ends of the place move on from `first` to `end`.
        let mut window = Window::default();
        let mut last = first;
        window.add(&self.price(choice, first));
        loop {
            // Sums of what has come and gone are not exact.
            while window.cost * (1.0 - 1e-9) <= best.cost
                && self.segments.reach(top, first, last) < takes
            {
                last = self.segments.onward(top, last);
                if last == END {
                    return;
                }
                let price = self.price(choice, last);
                if price.cost.is_infinite() {
                    return;
                }
                window.add(&price);
            }
            let late = if window.late > 0 { choice.late } else { 0.0 };
            if (window.cost + late) * (1.0 - 1e-9) <= best.cost {
                self.compare(choice, first, best);
            }
            self.segments[first].tried_in = self.choices;
            if first == end {
                return;
            }
            window.remove(&self.price(choice, first));
            if first == last {
                last = self.segments.onward(top, last);
                window.add(&self.price(choice, last));
            }
            first = self.segments.onward(top, first);
        }
    }

    fn price(&mut self, choice: &Choice, segment: u32) -> Price {
        let choices = self.choices;
        let segment = &mut self.segments[segment];
        if segment.priced_in != choices {
            let Price { cost, is_late } = choice.price(segment);
            (segment.priced_in, segment.cost, segment.is_late) = (choices, cost, is_late);
        }
        Price {
            cost: segment.cost,
            is_late: segment.is_late,
        }
    }

    /// Compares the place that starts at a segment, priced anew, with the best.
    fn compare(&mut self, choice: &Choice, first: u32, best: &mut Best) {
        let Choice { wish, from_top, .. } = *choice;
        let (mut cost, mut is_late, mut after) = (0.0, false, After::default());
        let mut last = first;
        loop {
            let price = self.price(choice, last);
            cost += price.cost;
            is_late |= price.is_late;
            after = after.and(choice.after(&self.segments[last]));
            if self.segments.reach(from_top, first, last) >= wish.takes {
                break;
            }
            last = self.segments.onward(from_top, last);
        }
        if is_late {
            cost += choice.late;
        }
        // Who stores or loads there would rather begin early; a result comes after all of that anyway.
        let waits = wish.loads || after.stores > 0;
        let tie = if waits { after.computes } else { 0 };
        let start = &self.segments[first];
        let (offset, segment) = match from_top {
            true => (start.end - wish.takes, last),
            false => (start.begin, first),
        };
        if cost.is_finite() && best.is_beaten_by(cost, tie, offset, from_top) {
            *best = Best {
                cost,
                tie,
                place: Some(Place { offset, segment }),
            };
        }
    }

    /// The tensor may be sent away from now on.
    pub fn may_leave(&mut self, scan: &Scan, tensor: u32) {
        if self.segments.segment_of(tensor) != END {
            self.leavers.push(&scan.states[tensor as usize], tensor);
        }
    }

    /// Sends everybody away who lies in a place.
    pub fn clear(&mut self, scan: &mut Scan, place: Place, bytes: u64) {
        let mut at = place.segment;
        while at != END && self.segments[at].begin < place.offset + bytes {
            let owner = self.segments[at].owner;
            if owner != NOBODY {
                let after = scan.send_away(owner as usize);
                self.segments.vacate(at, after);
            }
            at = self.segments[at].above;
        }
    }
}
