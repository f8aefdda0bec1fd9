//! Memory in classes: rooms of objects or of counted bytes, in each of which any piece is as good as another.

use std::collections::{BinaryHeap, VecDeque};

use super::planner::Wish;
use super::scan::Scan;
use super::{Addresses, After, Eviction, Memory, Rules};
use crate::dataflow::{Dataflow, TensorId};

/// So many are looked at for one that was not used lately: where all are used all the time, none is found.
const MOST_PASSED_OVER: usize = 32;

/// So much of a class, free since then; the first object's place where there are objects.
struct Free {
    room: u64,
    after: After,
    offset: u64,
}

#[derive(Default)]
struct Class {
    free: VecDeque<Free>,
    free_room: u64,
    /// By key, then tensor; entries whose key is not the tensor's are old.
    leavers: BinaryHeap<(u32, u32)>,
    /// Those there at the start and not yet used, whose first use is last on top.
    unused: BinaryHeap<(u32, u32)>,
}

#[derive(Default)]
pub struct Classes {
    classes: Vec<Class>,
    passed_over: Vec<(u32, u32)>,
}

impl Classes {
    pub fn reset(&mut self, memory: &Memory) {
        self.classes.resize_with(memory.room.len(), Class::default);
        for (i, (class, &room)) in self.classes.iter_mut().zip(&memory.room).enumerate() {
            class.leavers.clear();
            class.unused.clear();
            class.free.clear();
            class.free_room = room;
            let offset = match &memory.addresses {
                Addresses::Objects(classes) => classes[i].0,
                Addresses::Counted | Addresses::Contiguous => 0,
            };
            class.free.push_back(Free {
                room,
                after: After::default(),
                offset,
            });
        }
    }

    /// A parameter that is there when the run begins, anywhere.
    pub fn begin_with(&mut self, memory: &Memory, size: usize, tensor: TensorId) -> Option<u64> {
        let at = usize::from(memory.class_of_size[size]);
        let class = &mut self.classes[at];
        let takes = memory.takes[size];
        class.free_room = class.free_room.checked_sub(takes)?;
        let free = class.free.front_mut()?;
        free.room -= takes;
        let offset = free.offset;
        free.offset += takes * object_bytes(memory, at);
        class.unused.push((0, tensor.0));
        Some(offset)
    }

    /// All that is there when the run begins is known.
    pub fn begin(&mut self, scan: &Scan) {
        for class in &mut self.classes {
            let all = std::mem::take(&mut class.unused).into_iter();
            let first_use = |(_, t): (u32, u32)| (scan.states[t as usize].key, t);
            class.unused = all.map(first_use).collect();
        }
    }

    /// Makes room. For a load, of what has been free longest; for a result, of what became free last, since its
    /// operator comes after all of that anyway.
    pub fn allocate(
        &mut self,
        scan: &mut Scan,
        wish: &Wish,
        rules: &Rules,
        memory: &Memory,
        flow: &Dataflow,
    ) -> Option<(After, u64)> {
        let at = usize::from(memory.class_of_size[wish.size]);
        while self.classes[at].free_room < wish.takes {
            self.evict(scan, at, wish, rules, memory, flow)?;
        }
        let class = &mut self.classes[at];
        class.free_room -= wish.takes;
        let mut left = wish.takes;
        let mut from = After::default();
        let mut offset = 0;
        while left > 0 {
            let end = if wish.loads {
                class.free.front_mut()
            } else {
                class.free.back_mut()
            };
            let free = end?;
            let part = left.min(free.room);
            if part > 0 {
                from = from.and(free.after);
                offset = free.offset;
                free.offset += part * object_bytes(memory, at);
            }
            free.room -= part;
            left -= part;
            if free.room == 0 {
                if wish.loads {
                    class.free.pop_front();
                } else {
                    class.free.pop_back();
                }
            }
        }
        Some((from, offset))
    }

    /// The tensor may be sent away from now on.
    pub fn may_leave(&mut self, scan: &Scan, memory: &Memory, size: usize, tensor: TensorId) {
        let class = &mut self.classes[usize::from(memory.class_of_size[size])];
        let key = scan.states[tensor.index()].key;
        class.leavers.push((key, tensor.0));
    }

    pub fn free(&mut self, memory: &Memory, size: usize, after: After, offset: u64) {
        let class = &mut self.classes[usize::from(memory.class_of_size[size])];
        let room = memory.takes[size];
        class.free_room += room;
        class.free.push_back(Free {
            room,
            after,
            offset,
        });
    }

    fn evict(
        &mut self,
        scan: &mut Scan,
        class: usize,
        wish: &Wish,
        rules: &Rules,
        memory: &Memory,
        flow: &Dataflow,
    ) -> Option<()> {
        let mut pinned = None;
        while let Some((first_use, t)) = self.classes[class].unused.pop() {
            let state = &scan.states[t as usize];
            if !state.unused {
                continue;
            }
            if state.pinned_at == wish.position {
                pinned = Some((first_use, t));
                continue;
            }
            let offset = scan.plan.stays[state.stay as usize].offset;
            let after = scan.send_away(t as usize);
            let room = memory.takes[flow.size_index(TensorId(t))];
            let class = &mut self.classes[class];
            class.free.push_front(Free {
                room,
                after,
                offset,
            });
            class.free_room += room;
            class.unused.extend(pinned);
            return Some(());
        }
        self.classes[class].unused.extend(pinned);
        self.passed_over.clear();
        let mut chosen = None;
        let mut second = None;
        while let Some(entry @ (key, t)) = self.classes[class].leavers.pop() {
            let state = &scan.states[t as usize];
            if !state.resident || state.key != key {
                continue;
            }
            if state.pinned_at != wish.position {
                let is_old = scan.is_old(t as usize, wish.position, wish.wait_ns);
                if rules.eviction == Eviction::Lru || is_old {
                    chosen = Some(entry);
                    break;
                }
                if second.is_none() {
                    second = Some(entry);
                    continue;
                }
            }
            self.passed_over.push(entry);
            if self.passed_over.len() > MOST_PASSED_OVER {
                break;
            }
        }
        let leavers = &mut self.classes[class].leavers;
        leavers.extend(self.passed_over.drain(..));
        if chosen.is_some() {
            leavers.extend(second);
        }
        let (_, t) = chosen.or(second)?;
        let offset = scan.plan.stays[scan.states[t as usize].stay as usize].offset;
        let after = scan.send_away(t as usize);
        self.free(memory, flow.size_index(TensorId(t)), after, offset);
        Some(())
    }
}

fn object_bytes(memory: &Memory, class: usize) -> u64 {
    match &memory.addresses {
        Addresses::Objects(classes) => classes[class].1,
        Addresses::Counted | Addresses::Contiguous => 0,
    }
}
