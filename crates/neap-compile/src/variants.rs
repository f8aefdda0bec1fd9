//! The workloads of a program, by the kernels that compute it, and what plans of them stand on. Several are planned where
//! memory is short, some of them more than once.

use crate::kernels::Kernels;
use crate::options::Options;
use crate::programs::Programs;
use neap_ir::Program;
use neap_plan::{KernelId, Workload};
use neap_planner::{BaseLayouts, PlanOptions, Planner};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct Variants<'a> {
    pub program: Arc<Program>,
    options: &'a Options,
    made: RefCell<Vec<Variant>>,
}

struct Variant {
    kernels: Kernels,
    workload: Rc<Workload>,
    /// Of the planner that was made first.
    base_layouts: Option<Rc<BaseLayouts>>,
}

impl<'a> Variants<'a> {
    pub fn new(program: Arc<Program>, options: &'a Options) -> Self {
        Self {
            program,
            options,
            made: RefCell::default(),
        }
    }

    /// The one in which `kernels` picks; made when it is first asked for.
    pub fn workload(&self, kernels: Kernels) -> Rc<Workload> {
        let mut made = self.made.borrow_mut();
        let found = made.iter().find(|variant| {
            // What is direct with all memory that there is, is so with less.
            let is_direct = || variant.kernels == Kernels::FASTEST && is_direct(&variant.workload);
            variant.kernels == kernels || is_direct()
        });
        if let Some(variant) = found {
            return variant.workload.clone();
        }
        let workload = Rc::new(self.options.workload(&self.program, kernels));
        made.push(Variant {
            kernels,
            workload: workload.clone(),
            base_layouts: None,
        });
        workload
    }

    /// A planner for one of the workloads. `options` differ from those of planners before in nothing but whether to
    /// spill.
    pub fn planner<'w>(
        &self,
        workload: &'w Rc<Workload>,
        programs: &Programs,
        options: PlanOptions,
    ) -> Planner<'w> {
        let mut made = self.made.borrow_mut();
        let mut variants = made.iter_mut();
        let Some(variant) = variants.find(|v| Rc::ptr_eq(&v.workload, workload)) else {
            return programs.planner(workload, options);
        };
        if let Some(base_layouts) = variant.base_layouts.clone() {
            return Planner::on(
                Some(base_layouts),
                workload,
                options,
                programs.layouts.clone(),
            );
        }
        let planner = programs.planner(workload, options);
        variant.base_layouts = planner.base_layouts();
        planner
    }

    /// Gives one away: it is made anew when it is asked for again.
    pub fn take(&self, workload: Rc<Workload>) -> Workload {
        let mut made = self.made.borrow_mut();
        made.retain(|variant| !Rc::ptr_eq(&variant.workload, &workload));
        Rc::unwrap_or_clone(workload)
    }
}

fn is_direct(workload: &Workload) -> bool {
    workload
        .steps
        .iter()
        .all(|step| step.kernel == KernelId::DIRECT)
}
