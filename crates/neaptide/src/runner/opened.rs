//! A session, and how its tensors stand to those that the model declares.

use super::declared::{Tensor, check_shapes, outputs_of, shapes_of};
use super::half;
use crate::budget::{Budget, Scope};
use crate::error::{Error, Result};
use crate::ledger::{self, Ledger};
use crate::model::TensorInfo;
use crate::options::RunOptions;
use crate::plan::Plan;
use crate::request::{self, Request};
use crate::session::Session;
use neap_compile::Programs;
use neap_ir::DType;
use neap_onnx::{Declared, Signature};
use neap_runtime::CancelToken;
use std::time::Instant;

pub(super) struct Opened {
    session: Session,
    /// Of each input of the signature.
    inputs: Vec<Role>,
    /// As the caller gets them.
    outputs: Vec<TensorInfo>,
    /// The engine takes or gives half floats as f32. There is a place for each tensor of the session, inputs first.
    widened: Option<Vec<Vec<u8>>>,
}

/// Tensors beside those that a session is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Same,
    OtherShapes,
    /// Of inputs that are constants in the session.
    OtherValues,
}

enum Role {
    /// Of the session, by index.
    Input(usize),
    /// A constant: the value that decided shapes, as it was given.
    Bound { shape: Vec<usize>, bytes: Vec<u8> },
}

impl Opened {
    /// `inputs` are what the model was opened for.
    ///
    /// # Errors
    /// A value was bound when the model was packed that the caller does not give.
    pub fn new(session: Session, signature: &Signature, inputs: &[Tensor]) -> Result<Opened> {
        let role = |(index, input): (usize, &Declared)| {
            let known = session.inputs().iter();
            match (
                known.clone().position(|i| i.name == input.name),
                inputs.get(index),
            ) {
                (Some(at), _) => Ok(Role::Input(at)),
                (None, Some(given)) => Ok(Role::Bound {
                    shape: given.shape.to_vec(),
                    bytes: given.bytes.to_vec(),
                }),
                (None, None) => Err(Error::Defect(format!("input '{}' got lost", input.name))),
            }
        };
        let roles = signature.inputs.iter().enumerate().map(role);
        let roles = roles.collect::<Result<Vec<_>>>()?;
        let outputs = outputs_of(signature, &session);
        let takes = roles.iter().zip(&signature.inputs);
        let takes_wide = takes.into_iter().any(|(role, input)| match role {
            Role::Input(at) => input.dtype != Some(session.inputs()[*at].ty.dtype),
            Role::Bound { .. } => false,
        });
        let gives = outputs.iter().zip(session.outputs());
        let gives_wide = gives.into_iter().any(|(o, s)| o.ty.dtype != s.ty.dtype);
        let tensors = session.inputs().len() + session.outputs().len();
        let is_wide = takes_wide || gives_wide;
        Ok(Opened {
            widened: is_wide.then(|| vec![Vec::new(); tensors]),
            inputs: roles,
            outputs,
            session,
        })
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// Whose memory the session was planned for.
    pub fn scope(&self) -> Scope {
        self.session.standing.first_base.scope
    }

    pub fn set_budget(&mut self, budget: Budget) -> Result<()> {
        let standing = &self.session.standing;
        let budget = of_engine(budget, &standing.programs, &standing.options);
        self.session.set_budget(budget)?;
        Ok(())
    }

    /// A plan as if the model were opened anew within this budget of the engine, for the same shapes; without one, within
    /// the budget in force.
    ///
    /// # Errors
    /// [`Error::Infeasible`], as opening it would.
    pub fn plan(&self, budget: Option<Budget>) -> Result<Plan> {
        let in_force = || (self.session.budget_bytes()).map_or(Budget::Unlimited, Budget::Engine);
        let budget = budget.unwrap_or_else(in_force);
        let standing = &self.session.standing;
        let programs = &standing.programs;
        let options = RunOptions {
            budget: of_engine(budget, programs, &standing.options),
            ..standing.options.clone()
        };
        let request = Request {
            programs,
            budget: options.budget,
            options: &options,
            known: &standing.known,
            opening_bytes: 0,
            machine_bytes: standing.host.machine_bytes(),
        };
        let base = || {
            let heap_bytes = ledger::engine_heap_bytes(programs);
            Ledger::before_arena(
                Scope::Engine,
                heap_bytes,
                &request::reserve(programs, &options),
            )
        };
        request.plan(Instant::now(), base)
    }

    /// How these tensors stand to those that it is bound to, of which there are as many.
    pub fn standing(&self, inputs: &[Tensor]) -> Standing {
        if inputs.len() != self.inputs.len() {
            return Standing::OtherValues;
        }
        let mut standing = Standing::Same;
        for (role, tensor) in self.inputs.iter().zip(inputs) {
            match role {
                Role::Input(at) => {
                    if self.session.inputs()[*at].ty.shape != tensor.shape {
                        standing = Standing::OtherShapes;
                    }
                }
                Role::Bound { shape, bytes } => {
                    if shape != tensor.shape || bytes != tensor.bytes {
                        return Standing::OtherValues;
                    }
                }
            }
        }
        standing
    }

    /// Goes over to these shapes, and says whether it could: not for other values that decide shapes, nor where what was
    /// packed does not do for them.
    ///
    /// # Errors
    /// As [`Session::bind`], but for that.
    pub fn bind(&mut self, signature: &Signature, inputs: &[Tensor]) -> Result<bool> {
        match self.standing(inputs) {
            Standing::Same => return Ok(true),
            Standing::OtherValues => return Ok(false),
            Standing::OtherShapes => {}
        }
        check_shapes(signature, inputs)?;
        match self.session.bind(&shapes_of(signature, inputs)) {
            Ok(_) => {
                self.outputs = outputs_of(signature, &self.session);
                Ok(true)
            }
            // Opening the model from its source says what is wrong, if anything is.
            Err(Error::BadInput(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn run(
        &mut self,
        cancel: &CancelToken,
        inputs: &[Tensor],
        outputs: &mut [&mut [u8]],
    ) -> Result<()> {
        if self.widened.is_some() {
            return self.run_widened(cancel, inputs, outputs);
        }
        let mut given: Vec<&[u8]> = vec![&[]; self.session.inputs().len()];
        for (role, tensor) in self.inputs.iter().zip(inputs) {
            if let Role::Input(at) = role {
                given[*at] = tensor.bytes;
            }
        }
        self.session.run_unless(cancel, &given, outputs)
    }

    /// The same by way of f32 where the caller has half floats.
    fn run_widened(
        &mut self,
        cancel: &CancelToken,
        inputs: &[Tensor],
        outputs: &mut [&mut [u8]],
    ) -> Result<()> {
        if outputs.len() != self.outputs.len() {
            let (has, given) = (self.outputs.len(), outputs.len());
            let what = format!("the model has {has} outputs, {given} were given");
            return Err(Error::BadInput(what));
        }
        let session = &mut self.session;
        let places = self.widened.get_or_insert_default();
        let takes: Vec<DType> = session.inputs().iter().map(|i| i.ty.dtype).collect();
        let (wide_inputs, wide_outputs) = places.split_at_mut(takes.len());
        let roles = || self.inputs.iter().zip(inputs);
        for (role, tensor) in roles() {
            if let Role::Input(at) = role
                && tensor.dtype != takes[*at]
            {
                half::widen(tensor, takes[*at], &mut wide_inputs[*at])?;
            }
        }
        let mut given: Vec<&[u8]> = vec![&[]; takes.len()];
        for (role, tensor) in roles() {
            if let Role::Input(at) = role {
                given[*at] = match tensor.dtype == takes[*at] {
                    true => tensor.bytes,
                    false => &wide_inputs[*at],
                };
            }
        }
        let gives = session.outputs().to_vec();
        let mut taken: Vec<&mut [u8]> = Vec::with_capacity(gives.len());
        let all = self.outputs.iter().zip(&gives);
        let all = all.zip(outputs.iter_mut().zip(&mut *wide_outputs));
        for ((info, give), (place, wide)) in all {
            if info.ty.dtype == give.ty.dtype {
                taken.push(place);
            } else {
                wide.resize(give.len_bytes(), 0);
                taken.push(wide);
            }
        }
        session.run_unless(cancel, &given, &mut taken)?;
        for (index, (info, give)) in self.outputs.iter().zip(&gives).enumerate() {
            if info.ty.dtype != give.ty.dtype {
                half::narrow(
                    &wide_outputs[index],
                    give.ty.dtype,
                    &info.ty,
                    outputs[index],
                )?;
            }
        }
        Ok(())
    }
}

/// The same limit on the engine's own memory.
pub(super) fn of_engine(budget: Budget, programs: &Programs, options: &RunOptions) -> Budget {
    match budget {
        Budget::Bytes(bytes) => Budget::Engine(bytes),
        Budget::Percent(percent) => {
            let whole = request::whole(programs, options, Scope::Engine);
            Budget::Engine((whole.total_bytes() as f64 * percent / 100.0) as u64)
        }
        Budget::Unlimited | Budget::Engine(_) => budget,
    }
}
