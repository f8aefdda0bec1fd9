//! A session goes over to another binding of its model's shapes between two runs.
//!
//! ```text
//!   run ─► rest ─► programs for the shapes: lowered from the packed file, or kept from when they were last in use
//!                  plan for the budget in force ─► rearrange ─► run with tensors of the new shapes
//! ```
//! Weights that both plans keep in memory stay there. The last few bindings are kept with their programs and plans, as
//! far as they take a small part of the budget.

use crate::budget::{Budget, Scope};
use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::ledger;
use crate::model::{TensorInfo, infos};
use crate::package::{self, Asked, Binding};
use crate::plans_ahead::{Next, PlansAhead, plan_heap_bytes, workload_heap_bytes};
use crate::session::Session;
use neap_compile::Programs;
use neap_ir::Program;
use std::collections::BTreeMap;
use std::time::Instant;

/// Bindings that are kept beside the one in use.
const MOST_KEPT: usize = 4;

/// What they may take.
const MOST_KEPT_BYTES: u64 = 8 << 20;

/// Of the budget they take at most one part in so many.
const KEPT_SHARE: u64 = 16;

/// One change of the shapes, with its cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rebinding {
    /// Programs and plan had been kept from an earlier use of the shapes.
    pub was_kept: bool,
    /// Planned peak of the whole process from now on.
    pub high_water_bytes: u64,
    pub predicted_latency_ns: u64,
    /// All of it; lowering and planning are part of it, and the rest is rearranging.
    pub total_ns: u64,
    pub lowering_ns: u64,
    pub planning_ns: u64,
    /// Resident weights: stayed, were given up, are read beside the next run.
    pub kept_bytes: u64,
    pub released_bytes: u64,
    pub read_bytes: u64,
}

/// Bindings that were in use, the last of them at the end, and the plan in force.
#[derive(Default)]
pub(crate) struct Recent {
    kept: Vec<Bound>,
    /// Of the binding in use, once a session has gone over to it.
    plan: Option<Next>,
}

/// A binding with what was made for it.
struct Bound {
    binding: Binding,
    programs: Programs,
    known: Known,
    plan: Option<Next>,
}

impl Session {
    /// Goes over to other shapes of the model's inputs: of those that are named, and of those that share dimensions with
    /// them; the rest stay. Programs and plan are made within the budget in force, and nothing is packed. The last few
    /// bindings are kept, so that going back takes hardly any time. Plans that were made for other budgets
    /// ([`Session::prepare`]) are forgotten.
    ///
    /// # Errors
    /// [`Error::BadInput`] for shapes that the model does not take, and for a packed file that is damaged or lacks
    /// something that they need; [`Error::Infeasible`] when the budget is too small for them. The session
    /// goes on with its shapes.
    pub fn bind(&mut self, shapes: &BTreeMap<String, Vec<usize>>) -> Result<Rebinding> {
        let started = Instant::now();
        let asked = Asked {
            shapes,
            hints: &BTreeMap::new(),
            values: &BTreeMap::new(),
            size_bounds: &BTreeMap::new(),
            batch: None,
        };
        let wanted = self.standing.package.wanted(&asked, true)?.binding;
        if wanted == self.standing.package.binding {
            return Ok(Rebinding {
                was_kept: true,
                high_water_bytes: self.standing.ledger.total_bytes(),
                total_ns: started.elapsed().as_nanos() as u64,
                ..Rebinding::default()
            });
        }
        self.inner.rest();
        let gone_over = self.go_over(&wanted);
        if gone_over.is_err() {
            self.inner.wake();
        }
        Ok(Rebinding {
            total_ns: started.elapsed().as_nanos() as u64,
            ..gone_over?
        })
    }

    fn go_over(&mut self, wanted: &Binding) -> Result<Rebinding> {
        let kept = &mut self.standing.recent.kept;
        let known = kept.iter().position(|bound| bound.binding == *wanted);
        let kept = known.map(|index| kept.remove(index));
        let lowering = Instant::now();
        let mut bound = match kept {
            Some(bound) => bound,
            None => self.lowered(wanted)?,
        };
        let lowering_ns = lowering.elapsed().as_nanos() as u64;
        let (inputs, outputs) = tensors(&bound.programs);
        let tensors_bytes = total_bytes(&inputs) + total_bytes(&outputs);
        let growth_bytes = tensors_bytes.saturating_sub(self.standing.tensors_bytes);

        let planning = Instant::now();
        let scope = self.standing.first_base.scope;
        let usable = bound.plan.take().and_then(|next| {
            let base = self.base_of(&bound.programs, scope, growth_bytes);
            let (next, budget_bytes) = (next.beside(&base), self.standing.budget_bytes);
            let fits = budget_bytes.is_none_or(|budget| next.ledger.total_bytes() <= budget);
            (next.budget_bytes == budget_bytes && fits).then_some(next)
        });
        let was_kept = usable.is_some();
        let plan = match usable {
            Some(plan) => plan,
            None => self.planned(&bound, growth_bytes)?,
        };
        let planning_ns = planning.elapsed().as_nanos() as u64;

        let replaced = self.adopt(plan.clone())?;
        let rebinding = Rebinding {
            was_kept,
            high_water_bytes: plan.ledger.total_bytes(),
            predicted_latency_ns: plan.latency_ns,
            lowering_ns,
            planning_ns,
            kept_bytes: replaced.kept_bytes,
            released_bytes: replaced.released_bytes,
            read_bytes: replaced.read_bytes,
            total_ns: 0,
        };
        self.inputs = inputs;
        self.outputs = outputs;
        let standing = &mut self.standing;
        standing.tensors_bytes += growth_bytes;
        if scope == Scope::Process {
            standing.first_base.outputs_bytes += growth_bytes;
        }
        standing.ledger = plan.ledger;
        standing.plans_ahead = PlansAhead::default();
        let old = Bound {
            binding: std::mem::replace(&mut standing.package.binding, bound.binding),
            programs: std::mem::replace(&mut standing.programs, bound.programs),
            known: std::mem::replace(&mut standing.known, bound.known),
            plan: standing.recent.plan.replace(plan),
        };
        standing.recent.keep(old, standing.budget_bytes);
        self.standing.host.trim_heap();
        Ok(rebinding)
    }

    /// Programs for a binding, from the packed file.
    fn lowered(&self, wanted: &Binding) -> Result<Bound> {
        let standing = &self.standing;
        let programs = package::bind(&standing.file, wanted, standing.package.order)?;
        let known = (standing.known).of_other_shapes(&programs, &standing.options);
        Ok(Bound {
            binding: wanted.clone(),
            programs,
            known,
            plan: None,
        })
    }

    /// A plan for the budget in force; where that is too small beside the bindings that are kept, without them.
    fn planned(&mut self, bound: &Bound, growth_bytes: u64) -> Result<Next> {
        let scope = self.standing.first_base.scope;
        let budget = match self.standing.budget_bytes {
            Some(bytes) => Budget::of(scope, bytes),
            None => Budget::Unlimited,
        };
        let plan_now = |session: &Session| {
            let (programs, known) = (&bound.programs, &bound.known);
            let plan = session.plan_of(programs, known, budget, growth_bytes, Instant::now());
            session.standing.host.trim();
            plan
        };
        let mut plan = plan_now(self);
        let recent = &mut self.standing.recent;
        if matches!(plan, Err(Error::Infeasible { .. })) && !recent.is_empty() {
            *recent = Recent::default();
            self.standing.host.trim();
            plan = plan_now(self);
        }
        plan.map(Next::from)
    }
}

impl Recent {
    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.plan.is_none()
    }

    /// Keeps a binding that is no longer in use, and forgets those longest out of use.
    fn keep(&mut self, old: Bound, budget_bytes: Option<u64>) {
        let share = budget_bytes.map_or(u64::MAX, |bytes| bytes / KEPT_SHARE);
        let most_bytes = share.min(MOST_KEPT_BYTES);
        self.kept.push(old);
        while !self.kept.is_empty() && (self.kept.len() > MOST_KEPT || self.bytes() > most_bytes) {
            self.kept.remove(0);
        }
        if self.bytes() > most_bytes {
            self.plan = None;
        }
    }

    /// Nearly what all of it takes on the heap.
    pub fn bytes(&self) -> u64 {
        let kept = self.kept.iter();
        let kept = kept.map(|b| programs_bytes(&b.programs) + plan_bytes(&b.plan));
        kept.sum::<u64>() + plan_bytes(&self.plan)
    }
}

fn plan_bytes(plan: &Option<Next>) -> u64 {
    plan.as_ref().map_or(0, kept_plan_bytes)
}

/// Nearly what a plan takes on the heap.
pub(crate) fn kept_plan_bytes(next: &Next) -> u64 {
    (plan_heap_bytes(next.checked.plan()) + workload_heap_bytes(next.checked.workload())) as u64
}

fn tensors(programs: &Programs) -> (Vec<TensorInfo>, Vec<TensorInfo>) {
    let graph = &programs.plain.graph;
    (infos(graph, &graph.inputs), infos(graph, &graph.outputs))
}

/// What a caller holds of tensors.
pub(crate) fn total_bytes(tensors: &[TensorInfo]) -> u64 {
    tensors.iter().map(|t| t.len_bytes() as u64).sum()
}

/// Nearly what programs take on the heap.
pub(crate) fn programs_bytes(programs: &Programs) -> u64 {
    let all = std::iter::once(&programs.plain).chain(&programs.banded);
    all.map(|program| program_bytes(program)).sum()
}

fn program_bytes(program: &Program) -> u64 {
    let packed = program.packed.iter();
    // A name is an allocation of its own.
    let packed = packed.map(|p| size_of_val(p) + p.name.len() + 32);
    let lists = size_of_val(program.steps.as_slice())
        + size_of_val(program.storage.as_slice())
        + size_of_val(program.buffers.as_slice());
    ledger::graph_heap_bytes(&program.graph) + (packed.sum::<usize>() + lists) as u64
}
