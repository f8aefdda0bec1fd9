//! Memory pools: which tensor size goes into which size class, and how many objects each class has
//! (SwapAdvisor, Section 5.3).
//!
//! ```text
//!   TS   1 MB  2 MB  3 MB  4 MB       sizes that occur
//!   CLS   0     1     1     1         classes; objects are as large as the largest size in the class
//!   CNT   8 objects of 1 MB, 1 object of 4 MB
//! ```

use crate::dataflow::{Dataflow, OpId, TensorKind};
use neap_planner::Random;

/// A size class for each tensor size, and a number of objects for each class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// CLS of the paper, from 0: by size.
    pub class_of_size: Vec<u16>,
    /// CNT of the paper: by class.
    pub objects: Vec<u32>,
}

/// Which class lists are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Classes {
    /// Each class holds neighbouring sizes: `CLS[i]` is `CLS[i − 1]` or one more.
    #[default]
    Monotonic,
    /// Any size may go into any class; the paper shows that a search does worse with it.
    Unrestricted,
}

/// What allocations are made for: the sizes of one dataflow, what its operators need at once, a capacity.
#[derive(Clone, Debug)]
pub struct Pools {
    sizes: Vec<u64>,
    /// By size: how many tensors have it.
    tensors: Vec<u32>,
    /// The tensors of one operator, by size: each kind of operator once, as (size, how many).
    needs: Vec<Vec<(u16, u32)>>,
    capacity_bytes: u64,
    classes: Classes,
    smallest: (u64, Vec<u16>),
}

impl Pools {
    pub fn new(flow: &Dataflow, capacity_bytes: u64, classes: Classes) -> Self {
        let mut tensors = vec![0u32; flow.sizes().len()];
        for (t, tensor) in (0..).zip(flow.tensors()) {
            if tensor.kind != TensorKind::Apart {
                tensors[flow.size_index(super::TensorId(t))] += 1;
            }
        }
        let needs_of = |op: u32| {
            let mut need: Vec<(u16, u32)> = Vec::new();
            for touch in flow.touches(OpId(op)) {
                let size = flow.size_index(touch.tensor) as u16;
                match need.iter_mut().find(|(s, _)| *s == size) {
                    Some((_, count)) => *count += 1,
                    None => need.push((size, 1)),
                }
            }
            need.sort_unstable();
            need
        };
        let mut needs: Vec<_> = (0..flow.operators().len() as u32).map(needs_of).collect();
        needs.sort_unstable();
        needs.dedup();
        let mut pools = Self {
            sizes: flow.sizes().to_vec(),
            tensors,
            needs,
            capacity_bytes,
            classes,
            smallest: (0, Vec::new()),
        };
        pools.smallest = pools.smallest_pool();
        pools
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// The smallest memory for which there are pools of neighbouring sizes that let every operator run.
    pub fn smallest_bytes(&self) -> u64 {
        self.smallest.0
    }

    /// Bytes of an object, by class.
    pub fn object_bytes(&self, allocation: &Allocation) -> Vec<u64> {
        let mut bytes = vec![0; allocation.objects.len()];
        for (&class, &size) in allocation.class_of_size.iter().zip(&self.sizes) {
            let of = &mut bytes[usize::from(class)];
            *of = size.max(*of);
        }
        bytes
    }

    /// Whether it lies within the capacity and every operator can run in it.
    pub fn fits(&self, allocation: &Allocation) -> bool {
        let least = self.least_objects(&allocation.class_of_size, allocation.objects.len());
        let bytes = self.object_bytes(allocation);
        total_bytes(&allocation.objects, &bytes) <= self.capacity_bytes
            && allocation
                .objects
                .iter()
                .zip(&least)
                .all(|(n, least)| n >= least)
    }

    /// An allocation drawn at random. `None` when not even the smallest pools fit.
    pub fn random(&self, random: &mut Random) -> Option<Allocation> {
        if self.smallest.0 > self.capacity_bytes {
            return None;
        }
        let mut class_of_size = self.smallest.1.clone();
        for _ in 0..32 {
            let drawn = self.random_classes(random);
            if self.least_bytes(&drawn) <= self.capacity_bytes {
                class_of_size = drawn;
                break;
            }
        }
        let objects = self.random_objects(&class_of_size, random);
        Some(Allocation {
            class_of_size,
            objects,
        })
    }

    fn random_classes(&self, random: &mut Random) -> Vec<u16> {
        let n = self.sizes.len();
        match self.classes {
            Classes::Monotonic => {
                let mut class = 0;
                let step = |i| {
                    class += u16::from(i > 0 && random.chance(0.5));
                    class
                };
                (0..n).map(step).collect()
            }
            Classes::Unrestricted => {
                let mut drawn: Vec<u16> = (0..n).map(|_| random.below(n) as u16).collect();
                make_dense(&mut drawn);
                drawn
            }
        }
    }

    /// What each class needs, and random shares of the rest, as far as there are tensors for it.
    fn random_objects(&self, class_of_size: &[u16], random: &mut Random) -> Vec<u32> {
        let classes = class_count(class_of_size);
        let mut objects = self.least_objects(class_of_size, classes);
        let most = self.most_objects(class_of_size, classes);
        let bytes = self.object_bytes(&Allocation {
            class_of_size: class_of_size.to_vec(),
            objects: objects.clone(),
        });
        let shares: Vec<f64> = (0..classes).map(|_| -(1.0 - random.unit()).ln()).collect();
        for _ in 0..3 {
            let used = total_bytes(&objects, &bytes);
            let rest = self.capacity_bytes.saturating_sub(used) as f64;
            let open = |c: usize, objects: &[u32]| objects[c] < most[c] && bytes[c] > 0;
            let sum: f64 = (0..classes)
                .filter(|&c| open(c, &objects))
                .map(|c| shares[c])
                .sum();
            for c in 0..classes {
                if open(c, &objects) {
                    let more = (rest * shares[c] / sum / bytes[c] as f64) as u64;
                    objects[c] = (u64::from(objects[c]) + more).min(u64::from(most[c])) as u32;
                }
            }
        }
        objects
    }

    /// Both children of two parents cut at `cut`, repaired (the paper's Figure 5). A child that fits no
    /// more, because its classes need more than the capacity, is left out.
    pub fn cross(&self, a: &Allocation, b: &Allocation, cut: usize) -> [Option<Allocation>; 2] {
        let (a_each, b_each) = (a.objects_by_size(), b.objects_by_size());
        let join = |front: (&[u16], &[u32]), rest: (&[u16], &[u32])| {
            let mut classes = [&front.0[..cut], &rest.0[cut..]].concat();
            let each = [&front.1[..cut], &rest.1[cut..]].concat();
            match self.classes {
                Classes::Monotonic => repair_classes(&mut classes),
                Classes::Unrestricted => make_dense(&mut classes),
            }
            self.repaired(classes, &each)
        };
        let a = (&a.class_of_size[..], &a_each[..]);
        let b = (&b.class_of_size[..], &b_each[..]);
        [join(b, a), join(a, b)]
    }

    /// Each element of both lists changes with `probability`; repaired. `None` as in [`Pools::cross`].
    pub fn mutate(
        &self,
        allocation: &Allocation,
        probability: f64,
        random: &mut Random,
    ) -> Option<Allocation> {
        let mut classes = allocation.class_of_size.clone();
        let each = allocation.objects_by_size();
        match self.classes {
            Classes::Monotonic => {
                for i in 1..classes.len() {
                    if random.chance(probability) {
                        let joins = classes[i] != classes[i - 1];
                        for class in &mut classes[i..] {
                            *class = if joins { *class - 1 } else { *class + 1 };
                        }
                    }
                }
            }
            Classes::Unrestricted => {
                let n = classes.len();
                for class in &mut classes {
                    if random.chance(probability) {
                        *class = random.below(n) as u16;
                    }
                }
                make_dense(&mut classes);
            }
        }
        let count = class_count(&classes);
        let mut objects = average(&classes, count, &each);
        for n in &mut objects {
            if random.chance(probability) {
                // Mostly near what it was, and now and then far away.
                let spread = 0.5 + 0.3 * f64::from(*n);
                *n = (f64::from(*n) + spread * random.normal()).round().max(1.0) as u32;
            }
        }
        self.repair_objects(classes, objects)
    }

    fn repaired(&self, classes: Vec<u16>, each: &[u32]) -> Option<Allocation> {
        let count = class_count(&classes);
        let objects = average(&classes, count, each);
        self.repair_objects(classes, objects)
    }

    /// Takes the same number of bytes off every class until all fit, but leaves each what operators need.
    fn repair_objects(&self, class_of_size: Vec<u16>, mut objects: Vec<u32>) -> Option<Allocation> {
        let least = self.least_objects(&class_of_size, objects.len());
        let most = self.most_objects(&class_of_size, objects.len());
        for (c, n) in objects.iter_mut().enumerate() {
            *n = (*n).min(most[c]).max(least[c]);
        }
        let mut allocation = Allocation {
            class_of_size,
            objects,
        };
        let bytes = self.object_bytes(&allocation);
        let objects = &mut allocation.objects;
        loop {
            let excess = total_bytes(objects, &bytes).saturating_sub(self.capacity_bytes);
            if excess == 0 {
                return Some(allocation);
            }
            let open: Vec<usize> = (0..bytes.len())
                .filter(|&c| objects[c] > least[c] && bytes[c] > 0)
                .collect();
            if open.is_empty() {
                return None;
            }
            let share = excess.div_ceil(open.len() as u64);
            for &c in &open {
                let fewer = share
                    .div_ceil(bytes[c])
                    .min(u64::from(objects[c] - least[c]));
                objects[c] -= fewer as u32;
            }
        }
    }

    /// By class: how many of its objects some operator needs at once.
    fn least_objects(&self, class_of_size: &[u16], classes: usize) -> Vec<u32> {
        let mut least = vec![0u32; classes];
        let mut sum = vec![0u32; classes];
        for need in &self.needs {
            for &(size, count) in need {
                sum[usize::from(class_of_size[usize::from(size)])] += count;
            }
            for &(size, _) in need {
                let class = usize::from(class_of_size[usize::from(size)]);
                least[class] = least[class].max(sum[class]);
                sum[class] = 0;
            }
        }
        least
    }

    fn least_bytes(&self, class_of_size: &[u16]) -> u64 {
        let objects = self.least_objects(class_of_size, class_count(class_of_size));
        let allocation = Allocation {
            class_of_size: class_of_size.to_vec(),
            objects,
        };
        total_bytes(&allocation.objects, &self.object_bytes(&allocation))
    }

    fn most_objects(&self, class_of_size: &[u16], classes: usize) -> Vec<u32> {
        let mut most = vec![0u32; classes];
        for (&class, &tensors) in class_of_size.iter().zip(&self.tensors) {
            most[usize::from(class)] += tensors;
        }
        most
    }

    /// The cheapest cut of the sizes into classes of neighbours, by dynamic programming over the last cut.
    fn smallest_pool(&self) -> (u64, Vec<u16>) {
        let n = self.sizes.len();
        // needed[j]: fewest bytes for sizes before j, and where its last class begins.
        let mut needed = vec![(0u64, 0usize); n + 1];
        for end in 1..=n {
            let mut sums = vec![0u32; self.needs.len()];
            let mut most = 0;
            let mut best = (u64::MAX, 0);
            for begin in (0..end).rev() {
                for (need, sum) in self.needs.iter().zip(&mut sums) {
                    if let Ok(at) = need.binary_search_by_key(&(begin as u16), |&(s, _)| s) {
                        *sum += need[at].1;
                        most = most.max(*sum);
                    }
                }
                let class = self.sizes[end - 1].saturating_mul(u64::from(most));
                let total = needed[begin].0.saturating_add(class);
                // Of equal ones the finer: its objects are no larger than they must be.
                if total < best.0 {
                    best = (total, begin);
                }
            }
            needed[end] = best;
        }
        let mut cuts = Vec::new();
        let mut end = n;
        while end > 0 {
            cuts.push(end);
            end = needed[end].1;
        }
        cuts.reverse();
        let mut class_of_size = Vec::with_capacity(n);
        for (class, &end) in cuts.iter().enumerate() {
            class_of_size.resize(end, class as u16);
        }
        (needed[n].0, class_of_size)
    }
}

impl Allocation {
    /// The paper's extended CNT: how many objects each size can use.
    fn objects_by_size(&self) -> Vec<u32> {
        let classes = self.class_of_size.iter();
        classes.map(|&c| self.objects[usize::from(c)]).collect()
    }
}

fn total_bytes(objects: &[u32], bytes: &[u64]) -> u64 {
    let each = objects.iter().zip(bytes);
    each.map(|(&n, &bytes)| u64::from(n).saturating_mul(bytes))
        .fold(0, u64::saturating_add)
}

fn class_count(class_of_size: &[u16]) -> usize {
    class_of_size
        .iter()
        .max()
        .map_or(0, |&c| usize::from(c) + 1)
}

/// Raises elements by as little as makes each equal to or one more than the one before, from 0.
fn repair_classes(classes: &mut [u16]) {
    for i in 1..classes.len() {
        classes[i] = classes[i].max(classes[i - 1]);
    }
    for i in (1..classes.len()).rev() {
        classes[i - 1] = classes[i - 1].max(classes[i].saturating_sub(1));
    }
    let first = classes.first().copied().unwrap_or(0);
    classes.iter_mut().for_each(|c| *c -= first);
}

/// Renames classes so that none is left out, in order of first use.
fn make_dense(classes: &mut [u16]) {
    let mut names: Vec<u16> = Vec::new();
    for class in classes {
        let name = names.iter().position(|n| n == class).unwrap_or_else(|| {
            names.push(*class);
            names.len() - 1
        });
        *class = name as u16;
    }
}

/// By class, the mean of what its sizes had.
fn average(class_of_size: &[u16], classes: usize, each: &[u32]) -> Vec<u32> {
    let mut sums = vec![(0u64, 0u64); classes];
    for (&class, &n) in class_of_size.iter().zip(each) {
        let sum = &mut sums[usize::from(class)];
        *sum = (sum.0 + u64::from(n), sum.1 + 1);
    }
    let mean = |(sum, count): (u64, u64)| (sum / count.max(1)) as u32;
    sums.into_iter().map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::super::dataflow::TensorKind::{Activation, Parameter};
    use super::*;
    use crate::testing::{flow, random_flow};

    const MB: u64 = 1 << 20;

    /// Sizes of 1, 2, 3 and 4 MB, many of each; every operator touches one tensor.
    fn figure_5() -> Pools {
        let sizes = [1, 2, 3, 4].map(|s| [(s * MB, Activation); 9]);
        let tensors = sizes.concat();
        let writes: Vec<[u32; 1]> = (0..36).map(|t| [t]).collect();
        let operators: Vec<(u64, &[u32], &[u32])> =
            writes.iter().map(|w| (1, &[][..], &w[..])).collect();
        Pools::new(&flow(&tensors, &operators), 12 * MB, Classes::Monotonic)
    }

    #[test]
    fn the_papers_figure_5() {
        let pools = figure_5();
        let one = Allocation {
            class_of_size: vec![0, 0, 0, 0],
            objects: vec![4],
        };
        let two = Allocation {
            class_of_size: vec![0, 1, 1, 1],
            objects: vec![8, 1],
        };
        let [c1, c2] = pools.cross(&one, &two, 2);
        let c1 = c1.unwrap();
        assert_eq!(c1.class_of_size, [0, 1, 1, 1]);
        assert_eq!(c1.objects, [4, 2], "[8, 3] takes 20 MB of 12");
        assert_eq!(c2.unwrap().class_of_size, [0, 0, 1, 1]);
    }

    #[test]
    fn classes_are_repaired_by_as_little_as_can_be() {
        let repaired = |mut classes: Vec<u16>| {
            repair_classes(&mut classes);
            classes
        };
        assert_eq!(repaired(vec![0, 1, 0, 0]), [0, 1, 1, 1]);
        assert_eq!(repaired(vec![0, 0, 2]), [0, 1, 2]);
        assert_eq!(repaired(vec![0, 0, 3]), [0, 1, 2], "classes begin with 0");
    }

    #[test]
    fn whatever_is_made_fits() {
        for seed in 0..30 {
            let flow = random_flow(seed, 25);
            for classes in [Classes::Monotonic, Classes::Unrestricted] {
                let least = Pools::new(&flow, 0, classes).smallest_bytes();
                for capacity in [least, least + least / 4, least * 3] {
                    let pools = Pools::new(&flow, capacity, classes);
                    let mut r = Random::new(seed, 0, 1);
                    let a = pools.random(&mut r).expect("the smallest pools fit");
                    let b = pools.random(&mut r).expect("the smallest pools fit");
                    assert!(pools.fits(&a) && pools.fits(&b));
                    let cut = r.below(flow.sizes().len() + 1);
                    let children = pools.cross(&a, &b, cut);
                    let mutated = children
                        .iter()
                        .flatten()
                        .map(|c| pools.mutate(c, 0.4, &mut r));
                    for child in mutated
                        .collect::<Vec<_>>()
                        .iter()
                        .chain(&children)
                        .flatten()
                    {
                        assert!(pools.fits(child), "seed {seed}: {child:?}");
                        let steps = child.class_of_size.windows(2);
                        assert!(
                            classes == Classes::Unrestricted
                                || steps.clone().all(|w| w[0] == w[1] || w[0] + 1 == w[1])
                        );
                    }
                }
                assert!(
                    Pools::new(&flow, least - 1, classes)
                        .random(&mut Random::new(0, 0, 0))
                        .is_none()
                );
            }
        }
    }

    #[test]
    fn the_smallest_pools_are_the_best_of_all() {
        // One operator of sizes 10 and 11, one of 10 and 10: sharing a class costs 22, apart 31.
        let tensors = [(10, Parameter), (11, Activation), (10, Activation)];
        let f = flow(&tensors, &[(1, &[0], &[1]), (1, &[0], &[2])]);
        let pools = Pools::new(&f, 100, Classes::Monotonic);
        assert_eq!(pools.smallest_bytes(), 22);
        for seed in 0..10 {
            let f = random_flow(seed, 20);
            let pools = Pools::new(&f, 0, Classes::Monotonic);
            let n = f.sizes().len();
            let all = (0..1u32 << (n - 1)).map(|cuts| {
                let mut class = 0;
                let classes: Vec<u16> = (0..n)
                    .map(|i| {
                        class += u16::from(i > 0 && cuts >> (i - 1) & 1 == 1);
                        class
                    })
                    .collect();
                pools.least_bytes(&classes)
            });
            assert_eq!(all.min(), Some(pools.smallest_bytes()), "seed {seed}");
        }
    }
}
