//! What the steps of any program cost, by any kernels: as measured, or by what their layers take in the plain
//! program.

use crate::chains::{self, Chain, Plain};
use crate::kernels::Kernels;
use crate::operands::operands;
use crate::request::Request;
use neap_ir::{Node, NodeId, Program};
use neap_plan::{KernelId, StepSpec, Workload};
use neap_sim::CostProfile;
use std::cell::OnceCell;
use std::sync::Arc;

pub(crate) struct Costs<'a> {
    request: &'a Request<'a>,
    /// The plain program's, by direct kernels; made when it is first asked for.
    plain: OnceCell<Workload>,
}

impl<'a> Costs<'a> {
    pub fn new(request: &'a Request<'a>) -> Costs<'a> {
        Costs {
            request,
            plain: OnceCell::new(),
        }
    }

    /// Of one of the programs by the kernels of `workload`.
    pub fn of(&self, program: &Arc<Program>, workload: &Workload) -> CostProfile {
        let mut costs = match Arc::ptr_eq(program, &self.request.programs.plain) {
            true => self.of_plain(workload),
            false => self.of_other(program, workload),
        };
        self.request.times.apply(program, workload, &mut costs);
        costs
    }

    /// The times that are known are those of direct kernels.
    fn of_plain(&self, workload: &Workload) -> CostProfile {
        let mut costs = self.request.costs.clone();
        if let Some(divide) = &self.request.options.divide {
            // Those of the device and of the processor.
            costs.step_ns = divide
                .divide(&self.request.programs.plain, workload)
                .step_ns;
            return costs;
        }
        let program = &self.request.programs.plain;
        let device = self.request.options.with_scratch.as_ref();
        let told = device.map_or_else(Vec::new, |device| device.kernels(program));
        let steps = workload.steps.iter().enumerate();
        for (ns, (i, step)) in costs.step_ns.iter_mut().zip(steps) {
            if step.kernel != KernelId::DIRECT {
                let told = told.get(i).copied().flatten();
                let told = told.filter(|of| KernelId::from(of.choice) == step.kernel);
                *ns = told.map_or(0, |of| of.ns);
            }
        }
        costs
    }

    /// A chain in row bands takes as long as its layers together, and a little more.
    fn of_other(&self, program: &Program, workload: &Workload) -> CostProfile {
        let Request {
            programs, options, ..
        } = self.request;
        let plain = Plain {
            program: &programs.plain,
            workload: (self.plain)
                .get_or_init(|| options.workload(&programs.plain, Kernels::Direct)),
            costs: self.request.costs,
            times: self.request.times,
        };
        let producers = programs.plain.graph.producers();
        let steps = program.steps.iter().zip(&workload.steps);
        let step_ns = steps.map(|(step, spec)| {
            let node = &program.graph.nodes[step.index()];
            self.chain_ns(program, node, spec, &plain, &producers)
        });
        CostProfile {
            // Other steps, and what a forged file makes of chains, are estimated.
            step_ns: step_ns.map(|ns| ns.unwrap_or(0)).collect(),
            ..self.request.costs.clone()
        }
    }
    /// Time of a chain in row bands; `None` for other steps, and where the plain program has no such layers one
    /// after another.
    fn chain_ns(
        &self,
        program: &Program,
        node: &Node,
        spec: &StepSpec,
        plain: &Plain,
        producers: &[Option<NodeId>],
    ) -> Option<u64> {
        let bands = chains::of(&node.op)?;
        let mut steps = Vec::with_capacity(bands.layers.len());
        let mut value = node.outputs.first().copied().flatten();
        for _ in 0..bands.layers.len() {
            let made_by = (*producers.get(value?.index())?)?;
            steps.push(plain.program.steps.binary_search(&made_by).ok()?);
            value = plain.program.graph.nodes[made_by.index()].input(0);
        }
        steps.reverse();
        let chain = Chain {
            bands,
            inputs: &operands(program, &node.inputs),
            target: self.request.options.target,
        };
        chain.step_ns(spec.kernel, &steps, plain)
    }
}
