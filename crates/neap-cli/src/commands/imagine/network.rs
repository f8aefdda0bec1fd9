//! One of the networks: opened in the shapes that are needed, and run.

use super::report::Ran;
use crate::commands::open_or_pack;
use crate::failure::{Outcome, bad};
use crate::interrupt;
use half::f16;
use neaptide::{DType, Declared, DeclaredDim, OpenOptions, RunOptions, Session, memory};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// How networks are opened and run.
pub struct Engine {
    pub open: OpenOptions,
    pub run: RunOptions,
    pub own_cgroup: bool,
}

/// A network, and what it will be given.
pub struct Network {
    pub name: &'static str,
    path: PathBuf,
    shapes: BTreeMap<String, Vec<usize>>,
    /// Beside inputs, which are counted with it.
    scratch_bytes: u64,
}

impl Network {
    /// `shape_of` gives the shape of an input, `None` for one that is not known.
    pub fn new(
        name: &'static str,
        path: PathBuf,
        scratch_bytes: u64,
        shape_of: impl Fn(&str) -> Option<Vec<usize>>,
    ) -> Outcome<Network> {
        let signature =
            neaptide::signature(&path).map_err(|e| bad(format!("{}: {e}", path.display())))?;
        let mut shapes = BTreeMap::new();
        for input in &signature.inputs {
            let shape = shape_of(&input.name).ok_or_else(|| {
                bad(format!(
                    "{}: it wants '{}', which is not known for this kind of model",
                    path.display(),
                    input.name
                ))
            })?;
            let shape = fitted(input, shape).ok_or_else(|| {
                bad(format!(
                    "{}: its input '{}' has another shape than is needed for this size: export it with open sizes",
                    path.display(),
                    input.name
                ))
            })?;
            shapes.insert(input.name.clone(), shape);
        }
        Ok(Network {
            name,
            path,
            shapes,
            scratch_bytes,
        })
    }

    fn reserve_bytes(&self) -> u64 {
        let inputs = self.shapes.values().map(|s| s.iter().product::<usize>());
        // No element has more than 8 bytes.
        self.scratch_bytes + 8 * inputs.sum::<usize>() as u64
    }
}

/// A shape as an input declares it: one number may be declared as none or one dimension.
fn fitted(input: &Declared, shape: Vec<usize>) -> Option<Vec<usize>> {
    let shape = match (&input.dims, shape.as_slice()) {
        (Some(dims), [1]) if dims.is_empty() => Vec::new(),
        _ => shape,
    };
    let dims = input.dims.as_ref();
    let fits = dims.is_none_or(|dims| {
        dims.len() == shape.len()
            && dims.iter().zip(&shape).all(|(dim, size)| match dim {
                DeclaredDim::Fixed(fixed) => fixed == size,
                DeclaredDim::Named(_) | DeclaredDim::Open => true,
            })
    });
    fits.then_some(shape)
}

impl Engine {
    fn options(&self, network: &Network) -> (OpenOptions, RunOptions) {
        let open = OpenOptions {
            shapes: network.shapes.clone(),
            ..self.open.clone()
        };
        let run = RunOptions {
            reserve_bytes: network.reserve_bytes(),
            ..self.run.clone()
        };
        (open, run)
    }

    /// Why it cannot run within the budget, if so, and whether it had to be packed.
    pub fn check(
        &self,
        network: &Network,
        quiet: bool,
    ) -> Outcome<(Option<neaptide::Error>, bool)> {
        let (open, run) = self.options(network);
        let (model, was_packed) = open_or_pack(&network.path, &open, quiet)?;
        memory::trim_heap();
        match model.plan(&run) {
            Ok(_) => Ok((None, was_packed)),
            Err(error @ neaptide::Error::Infeasible { .. }) => Ok((Some(error), was_packed)),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it can run within the budget, or in so many bytes where there is none. It is packed.
    pub fn fits(&self, network: &Network, most_bytes: Option<u64>) -> Outcome<bool> {
        let (open, run) = self.options(network);
        let (model, _) = open_or_pack(&network.path, &open, true)?;
        memory::trim_heap();
        match model.plan(&run) {
            Ok(plan) => {
                let bytes = plan.high_water_bytes();
                Ok(plan.budget_bytes.is_some() || most_bytes.is_none_or(|most| bytes <= most))
            }
            Err(neaptide::Error::Infeasible { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens it for runs.
    pub fn open(&self, network: &Network) -> Outcome<Running> {
        memory::trim_heap();
        let began = Instant::now();
        let (open, run) = self.options(network);
        let (model, _) = open_or_pack(&network.path, &open, true)?;
        crate::commands::note_memory(&model);
        memory::trim_heap();
        let plan = model.plan(&run)?;
        let ran = Ran {
            network: network.name,
            weight_bytes: model.weight_bytes(),
            resident_weight_bytes: plan.verdict().resident_bytes,
            planned_high_water_bytes: plan.high_water_bytes(),
            predicted_ms_per_run: plan.prediction.latency_ns as f64 / 1e6,
            runs: 0,
            read_bytes: 0,
            seconds: 0.0,
            ledger: plan.ledger,
        };
        let path = network.path.clone();
        let session = model.into_session(plan, &run)?;
        let outputs = session.outputs().iter().map(crate::input::zeros);
        let outputs = outputs.collect::<Result<_, _>>().map_err(bad)?;
        Ok(Running {
            session,
            outputs,
            ran,
            began,
            path,
        })
    }
}

/// An open network.
pub struct Running {
    session: Session,
    outputs: Vec<Vec<u8>>,
    ran: Ran,
    began: Instant,
    path: PathBuf,
}

/// Values for an input, whatever its type.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    Floats(&'a [f32]),
    Whole(&'a [u32]),
    /// A step's number, which some models take as a whole one.
    Number(f64),
}

impl Running {
    /// Runs once. What it found stays until the next run.
    pub fn run<'a>(&mut self, value_of: impl Fn(&str) -> Option<Values<'a>>) -> Outcome {
        let mut tensors = Vec::new();
        for info in self.session.inputs() {
            let values = value_of(&info.name);
            let tensor = values.and_then(|values| bytes(info.ty.dtype, values));
            tensors.push(tensor.ok_or_else(|| {
                bad(format!(
                    "{}: its input '{}' takes {}",
                    self.path.display(),
                    info.name,
                    info.ty.dtype
                ))
            })?);
        }
        let given: Vec<&[u8]> = tensors.iter().map(Vec::as_slice).collect();
        let mut slots: Vec<&mut [u8]> = self.outputs.iter_mut().map(Vec::as_mut_slice).collect();
        let run = self
            .session
            .run_unless(&interrupt::token(), &given, &mut slots);
        interrupt::check()?;
        Ok(run?)
    }

    /// The names of its outputs.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.session.outputs().iter().map(|info| info.name.as_str())
    }

    /// The first output of one of these names, or the first of all.
    pub fn output(&self, names: &[&str]) -> Outcome<Vec<f32>> {
        let at = self.outputs().position(|name| names.contains(&name));
        self.floats(at.unwrap_or(0))
    }

    /// The output of this name, if there is one.
    pub fn named(&self, name: &str) -> Outcome<Option<Vec<f32>>> {
        let at = self.outputs().position(|output| output == name);
        at.map(|at| self.floats(at)).transpose()
    }

    fn floats(&self, at: usize) -> Outcome<Vec<f32>> {
        let infos = self.session.outputs();
        let (Some(info), Some(output)) = (infos.get(at), self.outputs.get(at)) else {
            return Err(bad(format!("{}: it has no outputs", self.path.display())));
        };
        let output = output.chunks_exact(info.ty.dtype.size_bytes().max(1));
        match info.ty.dtype {
            DType::F32 => Ok(output
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect()),
            DType::F16 => Ok(output
                .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect()),
            dtype => Err(bad(format!(
                "{}: its output '{}' is {dtype}",
                self.path.display(),
                info.name
            ))),
        }
    }

    /// What it took.
    pub fn close(self) -> Ran {
        let stats = self.session.stats();
        Ran {
            runs: stats.runs,
            read_bytes: stats.loaded_bytes + stats.resident_bytes,
            seconds: self.began.elapsed().as_secs_f64(),
            ..self.ran
        }
    }
}

fn bytes(dtype: DType, values: Values<'_>) -> Option<Vec<u8>> {
    fn all<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|v| to(*v)).collect()
    }
    Some(match (values, dtype) {
        (Values::Floats(v), DType::F32) => all(v, f32::to_le_bytes),
        (Values::Floats(v), DType::F16) => all(v, |v| f16::from_f32(v).to_le_bytes()),
        (Values::Whole(v), DType::I64) => all(v, |v| i64::from(v).to_le_bytes()),
        (Values::Whole(v), DType::I32) => all(v, u32::to_le_bytes),
        // Between two trained steps, the one before.
        (Values::Number(v), DType::I64) => (v as i64).to_le_bytes().to_vec(),
        (Values::Number(v), DType::I32) => (v as i32).to_le_bytes().to_vec(),
        (Values::Number(v), DType::F32) => (v as f32).to_le_bytes().to_vec(),
        (Values::Number(v), DType::F16) => f16::from_f64(v).to_le_bytes().to_vec(),
        _ => return None,
    })
}
