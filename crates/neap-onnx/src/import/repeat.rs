//! `Loop`: as many passes as there can be. Where the data decide how many there are, each is behind a guard, and what a pass
//! leaves is chosen after it.
//! One that would become too many nodes is one operator, if it can be (`passes`).
//!
//! ```text
//!   state ─► pass 0 ─► select ─► pass 1 ─► select ─► …         trip < count, and the condition so far
//!              ▲          ▲         ▲          ▲
//!            gate 0 ──────┴─────► gate 1 ──────┘     results of each pass: the first of all, as many as gates hold
//! ```

use super::branch::is_decided_late;
use super::passes::{Form, Loop, MOST_OPEN};
use super::unroll::{Body, Joined, MAX_UNROLLED, boolean, joined};
use super::{Importer, Scope};
use crate::builder::At;
use crate::error::{OnnxError, shown};
use crate::late::Axis;
use crate::node::{Ctx, Outputs};
use crate::ops::late::is_of_data;
use crate::proto::NodeProto;
use neap_ir::late::LateOp;
use neap_ir::op::Binary;
use neap_ir::{DType, Literal, ValueId};

/// How often a loop goes round.
struct Trips {
    /// Never more often.
    most: i64,
    /// What says how often, where that is known only when running.
    count: Option<ValueId>,
    /// The user gave `most`, and the model may go on after it.
    is_cut: bool,
}

/// Whether there is one more pass, before its number is compared with the trip count.
#[derive(Clone, Copy)]
enum Going {
    Known(bool),
    /// Where this gate holds.
    Late(ValueId),
}

/// Whether a pass takes place.
enum Pass {
    No,
    Yes,
    Behind(ValueId),
}

impl Importer<'_> {
    pub(super) fn repeat(
        &mut self,
        node: &NodeProto,
        at: At,
        inputs: &[Option<ValueId>],
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        let mut outer = Scope::inside(scope);
        let body = self.body(node, at, &mut outer, depth)?;
        let around = self.builder.guard;
        let mut ctx = self.ctx(&body, inputs);
        let trips = trips(&mut ctx)?;
        let mut going = first(&mut ctx, around)?;
        let mut states = inputs.get(2..).unwrap_or_default().to_vec();
        let scans = node.outputs.len().max(states.len()) - states.len();
        let results = body.graph.outputs.len();
        if results < 1 + states.len() || results - 1 - states.len() < scans {
            return Err(at.bad("its body has another number of outputs"));
        }
        let mut scanned = vec![Vec::new(); results - 1 - states.len()];
        let each = body.order.len().max(1);
        let mut refused = None;
        let is_long = (trips.most - 1).saturating_mul(each as i64) > MAX_UNROLLED as i64;
        if is_long && !matches!(going, Going::Known(false)) {
            let of = self.in_one(inputs, &trips, going);
            match self.by_body(&body, &outer, &of, depth) {
                Ok(results) => return Ok(results),
                // It may end early all the same.
                Err(error) => refused = Some(error),
            }
        }
        let mut gates = Vec::new();
        let mut trip = 0;
        while trip < trips.most {
            let pass = self.pass_at(at, trip, going, &trips, around)?;
            let gate = match pass {
                Pass::No => break,
                Pass::Yes => None,
                Pass::Behind(gate) => Some(gate),
            };
            if trip as usize * each > MAX_UNROLLED {
                let is_open = trips.most > MOST_OPEN && !trips.is_cut && gate.is_some();
                return Err(match refused {
                    Some(error) if !is_open => error,
                    _ => endless(at, node),
                });
            }
            let builder = &mut self.builder;
            let mut given = vec![
                Some(builder.literal(Literal::from_i64(&[], &[trip]))),
                Some(builder.literal(boolean(true))),
            ];
            given.extend(&states);
            builder.guard = gate.or(around);
            let made = self.pass(&body, &outer, &given, depth);
            self.builder.guard = around;
            let made = made?;
            let (condition, made) = made.split_first().ok_or_else(|| at.bad("no outputs"))?;
            let (next, scans) = made.split_at(states.len());
            going = self.after(at, *condition, gate, around)?;
            states = self.states(at, gate, &states, next)?;
            for (scanned, &value) in scanned.iter_mut().zip(scans) {
                scanned.extend(value);
            }
            gates.extend(gate);
            trip += 1;
        }
        if trip == 0 && scans > 0 {
            let of = self.in_one(inputs, &trips, going);
            let types = self.of_no_pass(&body, &outer, &of, depth)?;
            for ty in types.into_iter().take(scans) {
                states.push(Some(self.builder.literal(ty)));
            }
            return Ok(states);
        }
        for values in &mut scanned[..scans] {
            let values = std::mem::take(values);
            states.push(Some(self.all(&body, inputs, values, &gates)?));
        }
        if trips.is_cut && trip == trips.most {
            states = self.cut(at, states, going, &trips, around)?;
        }
        Ok(states)
    }

    /// The loop as one operator.
    fn in_one<'a>(
        &mut self,
        inputs: &'a [Option<ValueId>],
        trips: &Trips,
        going: Going,
    ) -> Loop<'a> {
        let most = if trips.is_cut { i64::MAX } else { trips.most };
        let most = || Literal::from_i64(&[], &[most]);
        let condition = inputs.get(1).copied().flatten();
        let is_asked = matches!(going, Going::Late(_));
        Loop {
            most: (trips.most < i64::MAX).then_some(trips.most),
            count: trips.count.unwrap_or_else(|| self.builder.literal(most())),
            condition: condition.filter(|_| is_asked),
            is_said: trips.is_cut,
            is_counted: trips.count.is_none() && !trips.is_cut && !is_asked,
            states: inputs.get(2..).unwrap_or_default(),
            form: Form::Loop,
        }
    }

    /// Whether there is this pass.
    fn pass_at(
        &mut self,
        at: At,
        trip: i64,
        going: Going,
        trips: &Trips,
        around: Option<ValueId>,
    ) -> Result<Pass, OnnxError> {
        let so_far = match going {
            Going::Known(false) => return Ok(Pass::No),
            Going::Known(true) => None,
            Going::Late(gate) => Some(gate),
        };
        let builder = &mut self.builder;
        let gate = match trips.count {
            Some(count) => {
                let trip = builder.literal(Literal::from_i64(&[], &[trip]));
                let operands = [Some(trip), Some(count)];
                let less = neap_ir::Op::Binary(Binary::Less);
                let within = builder.emit(at, less, &operands, &[true])?;
                let within = within[0].ok_or_else(|| at.bad("it has no output"))?;
                Some(builder.gate(at, within, false, so_far.or(around))?)
            }
            None => so_far,
        };
        Ok(gate.map_or(Pass::Yes, Pass::Behind))
    }

    /// Whether it goes on after a pass that took place where `gate` holds.
    fn after(
        &mut self,
        at: At,
        condition: Option<ValueId>,
        gate: Option<ValueId>,
        around: Option<ValueId>,
    ) -> Result<Going, OnnxError> {
        let condition = condition.ok_or_else(|| at.bad("its condition is left out"))?;
        let builder = &mut self.builder;
        if builder.ty(condition).elements() != 1 || builder.ty(condition).dtype != DType::Bool {
            return Err(at.bad("its condition must be one bool"));
        }
        if !builder.is_late(condition)
            && let Some(known) = builder.known(condition)?
        {
            return Ok(match (known.bytes() == [1], gate) {
                (true, Some(gate)) => Going::Late(gate),
                (goes_on, _) => Going::Known(goes_on),
            });
        }
        let gate = builder.gate(at, condition, false, gate.or(around))?;
        Ok(Going::Late(gate))
    }

    /// What is carried to the next pass.
    fn states(
        &mut self,
        at: At,
        gate: Option<ValueId>,
        old: &[Option<ValueId>],
        new: &[Option<ValueId>],
    ) -> Outputs {
        let Some(gate) = gate else {
            return Ok(new.to_vec());
        };
        let pairs = old.iter().zip(new);
        let chosen = pairs.map(|(&old, &new)| match (old, new) {
            (Some(old), Some(new)) => self.builder.select(at, gate, new, old).map(Some),
            _ => Err(at.bad("a value that it carries is left out")),
        });
        chosen.collect()
    }

    /// What the passes that took place gave, along a first axis.
    fn all(
        &mut self,
        body: &Body,
        inputs: &[Option<ValueId>],
        values: Vec<ValueId>,
        gates: &[ValueId],
    ) -> Result<ValueId, OnnxError> {
        let at = body.at;
        self.builder
            .check_tensors(at, &values.iter().copied().map(Some).collect::<Vec<_>>())?;
        if !gates.is_empty() && values.iter().any(|&v| self.builder.is_late(v)) {
            let what = "a result of each pass whose size is known only when running";
            return Err(at.unsupported(what));
        }
        let passes = values.len();
        let mut ctx = self.ctx(body, inputs);
        let scanned = Joined {
            values,
            axis: 0,
            reversed: false,
        };
        let all = joined(&mut ctx, &scanned)?;
        if gates.is_empty() {
            return Ok(all);
        }
        let builder = &mut self.builder;
        let only = |given: Vec<Option<ValueId>>| given[0].ok_or_else(|| at.bad("it has no output"));
        let flags: Vec<Option<ValueId>> = gates.iter().copied().map(Some).collect();
        let one = vec![(DType::I64, vec![Axis::known(1)])];
        let mut count = only(builder.emit_late(at, LateOp::Count, &flags, one, &[true])?)?;
        let certain = (passes - gates.len()) as i64;
        if certain > 0 {
            let certain = builder.literal(Literal::from_i64(&[1], &[certain]));
            let add = neap_ir::Op::Binary(Binary::Add);
            count = only(builder.emit(at, add, &[Some(count), Some(certain)], &[true])?)?;
        }
        let start = builder.literal(Literal::from_i64(&[1], &[0]));
        let mut axes = builder.axes(all);
        axes[0] = builder.late.fresh(passes);
        let results = vec![(builder.ty(all).dtype, axes)];
        let operands = [Some(all), Some(start), Some(count)];
        let slice = LateOp::Slice { axes: vec![0] };
        only(builder.emit_late(at, slice, &operands, results, &[true])?)
    }

    /// The results, of a loop that is an error where it goes on.
    fn cut(
        &mut self,
        at: At,
        results: Vec<Option<ValueId>>,
        going: Going,
        trips: &Trips,
        around: Option<ValueId>,
    ) -> Outputs {
        let passes = usize::try_from(trips.most).unwrap_or(0);
        let gate = match self.pass_at(at, trips.most, going, trips, around)? {
            Pass::No => return Ok(results),
            Pass::Yes => return Err(at.bad(format!("it goes on after {passes} passes"))),
            Pass::Behind(gate) => gate,
        };
        let ended = results.into_iter().map(|result| {
            let Some(x) = result else { return Ok(None) };
            let builder = &mut self.builder;
            let results = vec![(builder.ty(x).dtype, builder.axes(x))];
            let operands = [Some(gate), Some(x)];
            let op = LateOp::Ended { passes };
            let given = builder.emit_late(at, op, &operands, results, &[true])?;
            if let (Some(given), Some(narrow)) = (given[0], builder.narrow(x)) {
                builder.set_narrow(given, narrow);
            }
            Ok(given[0])
        });
        ended.collect()
    }
}

fn trips(c: &mut Ctx) -> Result<Trips, OnnxError> {
    let mut trips = Trips {
        most: i64::MAX,
        count: None,
        is_cut: false,
    };
    if let Some(count) = c.optional(0) {
        c.builder.check_tensors(c.at(), &[Some(count)])?;
        let is_known = !c.builder.is_late(count) && c.builder.known(count)?.is_some();
        if !is_known && is_of_data(c, count)? {
            let ty = c.ty(count);
            if ty.elements() != 1 || ty.dtype != DType::I64 {
                return Err(c.bad("its trip count must be one integer of 64 bits"));
            }
            let range = c.builder.range(count)?;
            trips.most = range
                .and_then(|r| r.high.first().copied())
                .unwrap_or(i64::MAX);
            trips.count = Some(count);
        } else {
            trips.most = c.known_scalar(0, "its trip count")?.unwrap_or(i64::MAX);
        }
    }
    let name = c.node.outputs.first().map_or("", String::as_str);
    if let Some(&most) = c.builder.late.bounds.get(name)
        && (most as i64) < trips.most
    {
        trips.most = most as i64;
        trips.is_cut = true;
    }
    Ok(trips)
}

/// Before the first pass.
fn first(c: &mut Ctx, around: Option<ValueId>) -> Result<Going, OnnxError> {
    let Some(condition) = c.optional(1) else {
        return Ok(Going::Known(true));
    };
    if is_decided_late(c, condition)? {
        let at = c.at();
        let gate = c.builder.gate(at, condition, false, around)?;
        return Ok(Going::Late(gate));
    }
    let known = c.known(condition, "its condition")?;
    Ok(Going::Known(known.bytes() == [1]))
}

/// Of a loop that nothing but the data ends.
fn endless(at: At, node: &NodeProto) -> OnnxError {
    OnnxError::Endless {
        node: shown(at.node),
        name: shown(node.outputs.first().map_or("", String::as_str)),
    }
}
