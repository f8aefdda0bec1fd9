//! The workloads of a program, by the kernels that compute it. Several are planned where memory is short, some of them
//! more than once.

use crate::kernels::Kernels;
use crate::session::RunOptions;
use neap_ir::Program;
use neap_plan::Workload;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct Variants<'a> {
    pub program: &'a Arc<Program>,
    options: &'a RunOptions,
    made: RefCell<Vec<(Kernels, Rc<Workload>)>>,
}

impl<'a> Variants<'a> {
    pub fn new(program: &'a Arc<Program>, options: &'a RunOptions) -> Self {
        Self {
            program,
            options,
            made: RefCell::default(),
        }
    }

    /// The one in which `kernels` picks; made when it is first asked for.
    pub fn workload(&self, kernels: Kernels) -> Rc<Workload> {
        let mut made = self.made.borrow_mut();
        let found = made.iter().find(|(picked_by, workload)| {
            // What is direct with all memory that there is, is so with less.
            *picked_by == kernels || *picked_by == Kernels::FASTEST && is_direct(workload)
        });
        if let Some((_, workload)) = found {
            return workload.clone();
        }
        let workload = Rc::new(self.options.workload(self.program, kernels));
        made.push((kernels, workload.clone()));
        workload
    }

    /// Gives one away: it is made anew when it is asked for again.
    pub fn take(&self, workload: Rc<Workload>) -> Workload {
        let mut made = self.made.borrow_mut();
        made.retain(|(_, other)| !Rc::ptr_eq(other, &workload));
        Rc::unwrap_or_clone(workload)
    }
}

fn is_direct(workload: &Workload) -> bool {
    workload.steps.iter().all(|step| step.kernel == 0)
}
