//! Swap planning: what leaves fast memory, what comes back, and when (SwapAdvisor, Section 4.2).
//!
//! The schedule is scanned once. Each operator's tensors must be in memory; where there is no room, others
//! go: the tensor of the same class that is used again last (Belady), or, with addresses, whatever is
//! cheapest to send away of what lies together. What is decided is held as counts, so that three lanes can
//! follow it:
//!
//! ```text
//!   compute   op1 ─── op2 ─────────── op3         op3 may start when 3 loads and 1 store are done
//!   load      W1  W2         ┌─ W3 ───┘           W3 may start when op1 is done and W1's place is free
//!   store            A1 ─────┘
//! ```

mod classes;
mod leavers;
mod places;
mod planner;
mod scan;
mod segments;

use super::dataflow::{Dataflow, OpId, TensorId};
pub use planner::{SwapPlanner, SwapTask};

/// "When `computes` operators and `stores` stores are done."
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct After {
    pub computes: u32,
    pub stores: u32,
}

impl After {
    fn and(self, other: After) -> After {
        After {
            computes: self.computes.max(other.computes),
            stores: self.stores.max(other.stores),
        }
    }
}

/// A transfer into fast memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapIn {
    pub tensor: TensorId,
    pub after: After,
}

/// A transfer out of fast memory, of a tensor whose copy in backing memory is not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapOut {
    pub tensor: TensorId,
    pub after_computes: u32,
}

/// When an operator may start, beside having its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Needs {
    pub loads: u32,
    pub stores: u32,
}

/// A stay of a tensor in fast memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    pub tensor: TensorId,
    /// Where it lies, in memory that has addresses.
    pub offset: u64,
    /// Its memory is its own from then on.
    pub from: After,
    /// One past the schedule position of its last use in this stay; the schedule's length when it stays for
    /// good, 0 when it never was there.
    pub to: u32,
    /// Position of the first operator that has it.
    pub first_use: u32,
    /// The load that brings it; none for what an operator makes, and what is there at the start.
    pub load: Option<u32>,
    /// The store that writes it back at the end.
    pub store: Option<u32>,
    /// There at the start of a run, and again at its end.
    pub initial: bool,
}

/// Everything that a run does, lane by lane.
#[derive(Clone, Debug, Default)]
pub struct SwapPlan {
    pub order: Vec<OpId>,
    pub needs: Vec<Needs>,
    pub loads: Vec<SwapIn>,
    pub stores: Vec<SwapOut>,
    pub stays: Vec<Stay>,
}

impl SwapPlan {
    /// Whether everything that is there when a run begins is in the same place when it ends.
    pub fn repeats(&self) -> bool {
        let mut initial = self.stays.iter().filter(|s| s.initial);
        initial.all(|s| s.to as usize == self.order.len())
    }

    /// One past the highest byte used.
    pub fn high_water_bytes(&self, flow: &Dataflow) -> u64 {
        let stays = self.stays.iter().filter(|s| s.to > 0);
        let ends = stays.map(|s| s.offset + flow.tensors()[s.tensor.index()].bytes);
        ends.max().unwrap_or(0)
    }
}

/// Whom to send away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Eviction {
    /// Who is used again last; of those not used within the threshold, where there are any.
    #[default]
    Belady,
    /// Who was used longest ago.
    Lru,
}

/// Whether tensors have places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Bytes are only counted.
    Counted,
    /// By class: where its objects begin, and how large each is.
    Objects(Vec<(u64, u64)>),
    /// One class of bytes, in which each tensor has a contiguous place.
    Contiguous,
}

/// Fast memory as the scan sees it: classes, each with so much room, and what a tensor takes of its class.
/// One class of bytes is an allocator, without fragmentation where they are only counted; classes of objects
/// are the paper's pools.
#[derive(Clone, Debug)]
pub struct Memory {
    /// By tensor size.
    pub class_of_size: Vec<u16>,
    /// By tensor size.
    pub takes: Vec<u64>,
    /// By class.
    pub room: Vec<u64>,
    pub addresses: Addresses,
    /// By tensor, where it must lie in memory with contiguous places, whatever is there before: at a multiple of
    /// the granule. No two of these may overlap while an operator has both. What an operator makes there
    /// stays until its last use. May be empty: nothing is fixed.
    pub fixed: Vec<Option<u64>>,
}

impl Memory {
    /// The paper's pools, one class above the other.
    pub fn pools(flow: &Dataflow, allocation: &super::Allocation) -> Self {
        let mut classes = vec![(0, 0u64); allocation.objects.len()];
        for (&class, &size) in allocation.class_of_size.iter().zip(flow.sizes()) {
            let object = &mut classes[usize::from(class)].1;
            *object = size.max(*object);
        }
        let mut at = 0u64;
        for (class, &objects) in classes.iter_mut().zip(&allocation.objects) {
            class.0 = at;
            at = at.saturating_add(class.1.saturating_mul(u64::from(objects)));
        }
        Self {
            class_of_size: allocation.class_of_size.clone(),
            takes: vec![1; allocation.class_of_size.len()],
            room: allocation.objects.iter().map(|&n| u64::from(n)).collect(),
            addresses: Addresses::Objects(classes),
            fixed: Vec::new(),
        }
    }

    /// One class of `bytes`, in which tensors take whole `granule_bytes`; counted only.
    pub fn bytes(flow: &Dataflow, bytes: u64, granule_bytes: u64) -> Self {
        let takes = flow
            .sizes()
            .iter()
            .map(|s| s.next_multiple_of(granule_bytes));
        Self {
            class_of_size: vec![0; flow.sizes().len()],
            takes: takes.collect(),
            room: vec![bytes],
            addresses: Addresses::Counted,
            fixed: Vec::new(),
        }
    }

    fn fixed_at(&self, tensor: TensorId) -> Option<u64> {
        self.fixed.get(tensor.index()).copied().flatten()
    }

    /// As [`Memory::bytes`], with a place for each tensor, at a multiple of `granule_bytes`.
    pub fn places(flow: &Dataflow, bytes: u64, granule_bytes: u64) -> Self {
        Self {
            addresses: Addresses::Contiguous,
            ..Self::bytes(flow, bytes, granule_bytes)
        }
    }
}

/// How swaps are planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    pub eviction: Eviction,
    /// The recency threshold, in times that the tensor for which there must be room takes to move.
    pub recency: f64,
    /// Parameters that are there at the start stay to the end, where they are, so that the next run can begin as
    /// this one did. Otherwise one may go and come back within a run, to another place than where it began:
    /// the paper's, whose objects have no fixed addresses. Always so in memory with contiguous places.
    pub keeps_initial: bool,
    pub places: PlaceRules,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            eviction: Eviction::Belady,
            recency: 1.0,
            keeps_initial: true,
            places: PlaceRules::default(),
        }
    }
}

/// How places are chosen where tensors have addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlaceRules {
    /// Sending a byte away costs the inverse of the distance to its next use to this power.
    pub far_power: u8,
    /// A place that a load would have to wait for costs so much for each byte loaded.
    pub late_penalty: f64,
    pub side: Side,
}

impl Default for PlaceRules {
    fn default() -> Self {
        Self {
            far_power: 1,
            late_penalty: 1.0,
            side: Side::Loads,
        }
    }
}

/// Which tensors are placed from the top of memory down; the others are from the bottom up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Nobody,
    /// What is loaded.
    Loads,
    /// Tensors that take less than so many bytes.
    Below(u64),
}
