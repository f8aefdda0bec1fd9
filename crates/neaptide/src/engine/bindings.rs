//! A model in other shapes than those that it was loaded with: other programs over the same weights, and plans within the
//! same share of memory.
//!
//! ```text
//!   caller's thread   shapes ─► programs ─► a plan that takes no more than the model's share │ a turn │
//!   session                                                                                  │ goes over to it │ runs │
//! ```
//! What both plans keep in memory stays there. A plan is kept with its programs for the next time, and made anew when the
//! share has changed.

use super::candidates::Planning;
use super::division::Candidate;
use super::member::lock;
use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::ledger::{self, Ledger};
use crate::model::{self, Model, TensorInfo, infos};
use crate::options::RunOptions;
use crate::package::{self, Asked, Binding, Package};
use crate::plans_ahead::Next;
use crate::rebind::{kept_plan_bytes, programs_bytes};
use crate::shapes::Shapes;
use neap_compile::{Compiled, Programs};
use neap_store::PackedFile;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Programs for some shapes, and a plan of them.
pub(super) struct Bound {
    pub inputs: Vec<TensorInfo>,
    pub outputs: Vec<TensorInfo>,
    pub programs: Programs,
    pub known: Arc<Known>,
    /// And the share that it was made for.
    plan: Mutex<Option<(Candidate, Next)>>,
}

/// Shapes beside those that a model was loaded with.
pub(super) struct Others {
    file: PackedFile,
    /// Bound to the shapes that the model was loaded with.
    package: Package,
    /// The model's plans leave room for these.
    pub named: Vec<Arc<Bound>>,
    /// Those of late, the last one at the end; `named` ones are among them from the beginning.
    kept: Mutex<Vec<(Binding, Arc<Bound>)>>,
    /// What `kept` may take.
    pub most_bytes: u64,
}

/// Which shapes, and programs for them.
pub(super) type Lowered = (Binding, Programs);

impl Bound {
    pub fn new(programs: Programs, known: Arc<Known>) -> Bound {
        let graph = &programs.plain.graph;
        Bound {
            inputs: infos(graph, &graph.inputs),
            outputs: infos(graph, &graph.outputs),
            programs,
            known,
            plan: Mutex::new(None),
        }
    }

    /// In shapes beside those that `known` is of.
    pub fn other(programs: Programs, known: &Known, options: &RunOptions) -> Bound {
        let known = known.of_other_shapes(&programs, options);
        Bound::new(programs, Arc::new(known))
    }

    pub fn planning<'a>(&'a self, options: &'a RunOptions) -> Planning<'a> {
        Planning {
            programs: &self.programs,
            options,
            known: &self.known,
        }
    }

    /// The plan for a share, if it has been made.
    pub fn planned(&self, share: Candidate) -> Option<Next> {
        let plan = lock(&self.plan);
        let (made_for, next) = plan.as_ref()?;
        (*made_for == share).then(|| next.clone())
    }

    /// Makes the plan for a share, where that is still to be done: the first of `rooms` whose plan takes no more.
    ///
    /// # Errors
    /// [`Error::Infeasible`] when these shapes need more.
    pub fn prepare(
        &self,
        options: &RunOptions,
        share: Candidate,
        rooms: impl Iterator<Item = u64>,
    ) -> Result<()> {
        if self.planned(share).is_some() {
            return Ok(());
        }
        // Who has a turn looks at the plan, and must not wait for planning.
        match self.planning(options).within(&share, rooms)? {
            Ok(compiled) => {
                *lock(&self.plan) = Some((share, next(compiled)));
                Ok(())
            }
            Err(least_bytes) => {
                let smallest = Ledger {
                    arena_bytes: least_bytes,
                    ..Ledger::default()
                };
                let has = share.work_bytes.saturating_add(share.own_bytes);
                Err(Error::infeasible(has, smallest))
            }
        }
    }

    fn heap_bytes(&self) -> u64 {
        let plan = lock(&self.plan);
        let plan_bytes = plan.as_ref().map_or(0, |(_, next)| kept_plan_bytes(next));
        programs_bytes(&self.programs) + plan_bytes
    }
}

impl Others {
    /// # Errors
    /// As [`Model::open`].
    pub fn new(model: &Model) -> Result<Others> {
        let (_, file, package) = model::reopen(model)?.take_packed()?;
        Ok(Others {
            file,
            package,
            named: Vec::new(),
            kept: Mutex::default(),
            most_bytes: 0,
        })
    }

    /// Programs for these shapes; `None` for those that the model was loaded with.
    ///
    /// # Errors
    /// [`Error::BadInput`] for shapes that it does not take.
    pub fn lowered(&self, shapes: &Shapes) -> Result<Option<Lowered>> {
        let wanted = self.wanted(shapes)?;
        if wanted == self.package.binding {
            return Ok(None);
        }
        let programs = package::bind(&self.file, &wanted, self.package.order)?;
        Ok(Some((wanted, programs)))
    }

    /// Plans of the model are to leave room for these.
    pub fn name(&mut self, lowered: Vec<Lowered>, known: &Known, options: &RunOptions) {
        for (binding, programs) in lowered {
            // Of those that are named, one that is in use, and one that is made.
            self.most_bytes = self
                .most_bytes
                .max(2 * ledger::program_heap_bytes(&programs));
            self.most_bytes += ledger::program_heap_bytes(&programs);
            let bound = Arc::new(Bound::other(programs, known, options));
            self.named.push(bound.clone());
            self.keep(binding, bound);
        }
    }

    /// Programs for these shapes, and maybe their plan; `None` for those that the model was loaded with.
    ///
    /// # Errors
    /// [`Error::BadInput`] for shapes that it does not take.
    pub fn bound(
        &self,
        shapes: &Shapes,
        known: &Known,
        options: &RunOptions,
    ) -> Result<Option<Arc<Bound>>> {
        if let Some(found) = self.kept(&self.wanted(shapes)?) {
            return Ok(Some(found));
        }
        let Some((wanted, programs)) = self.lowered(shapes)? else {
            return Ok(None);
        };
        let bound = Arc::new(Bound::other(programs, known, options));
        self.keep(wanted, bound.clone());
        Ok(Some(bound))
    }

    fn wanted(&self, shapes: &Shapes) -> Result<Binding> {
        let asked = Asked {
            shapes,
            hints: &Shapes::new(),
            values: &BTreeMap::new(),
            size_bounds: &BTreeMap::new(),
            batch: None,
        };
        Ok(self.package.wanted(&asked, true)?.binding)
    }

    fn kept(&self, wanted: &Binding) -> Option<Arc<Bound>> {
        let mut kept = lock(&self.kept);
        let at = kept.iter().position(|(binding, _)| binding == wanted)?;
        let found = kept.remove(at);
        let bound = found.1.clone();
        kept.push(found);
        Some(bound)
    }

    /// Keeps it, and forgets those longest out of use.
    fn keep(&self, binding: Binding, bound: Arc<Bound>) {
        let mut kept = lock(&self.kept);
        kept.retain(|(other, _)| *other != binding);
        kept.push((binding, bound));
        while kept.len() > 1 {
            let bytes: u64 = kept.iter().map(|(_, bound)| bound.heap_bytes()).sum();
            if bytes <= self.most_bytes {
                break;
            }
            kept.remove(0);
        }
    }
}

fn next(compiled: Compiled) -> Next {
    Next {
        program: compiled.program,
        checked: compiled.plan,
        budget_bytes: None,
        ledger: Ledger::default(),
        latency_ns: compiled.prediction.latency_ns,
    }
}
