//! The models that are loaded, and how they share the memory that is theirs together.
//!
//! Each model has a share: the least that it can run in, and of what is left a part by its weights and urgency. When a
//! model comes, the others give up memory before it takes any; when one goes, the others get its memory.

use crate::buffer::Tensor;
use crate::settings::Settings;
use neaptide::{
    Budget, Cache, Error, Ledger, Model, OpenOptions, Result, RunOptions, Session, TensorInfo,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// How all models are opened and run.
#[derive(Debug, Clone)]
pub struct Engine {
    pub run: RunOptions,
    pub cache: Cache,
    pub host: Arc<dyn neaptide::Host>,
}

/// A model that was opened (and packed, where need be), and takes hardly any memory yet.
pub struct Opened {
    model: Model,
    urgency: f64,
    pub inputs: Vec<TensorInfo>,
    pub outputs: Vec<TensorInfo>,
    /// Its outputs have as many rows as its inputs, whatever their number.
    pub takes_rows: bool,
}

/// Every loaded model, by name.
pub struct Fleet {
    /// `None` without a limit.
    budget_bytes: Option<u64>,
    engine: Engine,
    members: BTreeMap<String, Member>,
}

struct Member {
    session: Session,
    need: Need,
    /// As it was opened: what its need is of.
    inputs: Vec<TensorInfo>,
}

/// What a model asks of memory.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Need {
    least_bytes: u64,
    most_bytes: u64,
    weight: f64,
}

impl Engine {
    /// Opens a model; packs it first when no packed form is cached. Takes part in no budget: what packing takes is free
    /// again afterwards.
    ///
    /// # Errors
    /// Those of [`Model::open`]; [`Error::BadInput`] when it is to run in batches and cannot.
    pub fn open(&self, path: &Path, settings: &Settings) -> Result<Opened> {
        let options = OpenOptions {
            shapes: settings.shapes.clone(),
            cache: self.cache.clone(),
            host: self.host.clone(),
            ..OpenOptions::default()
        };
        let mut model = Model::open(path, &options, &mut |_| {})?;
        model.check_weights()?;
        let (inputs, outputs) = (model.inputs(), model.outputs());
        let mut takes_rows = false;
        if settings.batch.is_some() {
            check_rows(&mut model, &inputs, &outputs)?;
            takes_rows = true;
        }
        Ok(Opened {
            model,
            urgency: settings.urgency,
            inputs,
            outputs,
            takes_rows,
        })
    }
}

/// The same tensors with another number of rows.
pub fn with_rows(tensors: &[TensorInfo], rows: usize) -> Vec<TensorInfo> {
    let mut all = tensors.to_vec();
    for tensor in &mut all {
        if let Some(first) = tensor.ty.shape.first_mut() {
            *first = rows;
        }
    }
    all
}

/// Binds the model to other numbers of rows, and back.
fn check_rows(model: &mut Model, inputs: &[TensorInfo], outputs: &[TensorInfo]) -> Result<()> {
    let cannot = |reason: String| Error::BadInput(format!("it cannot run in batches: {reason}"));
    if let Some(bad) = (inputs.iter().chain(outputs)).find(|t| t.ty.shape.first() != Some(&1)) {
        let shape = neaptide::shape_text(&bad.ty.shape);
        let reason = format!("'{}' is {shape}, and has not one row", bad.name);
        return Err(cannot(reason));
    }
    for rows in [2, 3] {
        model
            .bind(&shapes(&with_rows(inputs, rows)))
            .map_err(|e| cannot(e.to_string()))?;
        if model.inputs() != with_rows(inputs, rows) || model.outputs() != with_rows(outputs, rows)
        {
            return Err(cannot(format!(
                "with {rows} rows of inputs its outputs have not {rows} rows"
            )));
        }
    }
    model.bind(&shapes(inputs))
}

fn shapes(tensors: &[TensorInfo]) -> BTreeMap<String, Vec<usize>> {
    let shapes = tensors.iter();
    shapes
        .map(|t| (t.name.clone(), t.ty.shape.clone()))
        .collect()
}

impl Fleet {
    pub fn new(budget_bytes: Option<u64>, engine: Engine) -> Fleet {
        Fleet {
            budget_bytes,
            engine,
            members: BTreeMap::new(),
        }
    }

    /// Takes a model in, and divides the memory anew. All is as it was when this fails.
    ///
    /// # Errors
    /// [`Error::Infeasible`] when not all can run in the memory there is.
    pub fn add(&mut self, name: &str, opened: Opened) -> Result<()> {
        let need = self.need(&opened);
        let inputs = opened.inputs.clone();
        let others: Vec<Need> = self.members.values().map(|m| m.need).collect();
        let shares = match self.budget_bytes {
            None => None,
            Some(budget) => {
                let needs: Vec<Need> = others.iter().copied().chain([need]).collect();
                let shares = divided(budget, &needs).ok_or_else(|| too_small(budget, &needs))?;
                Some(shares)
            }
        };
        let budgets = shares.iter().flatten().map(|&share| Budget::Engine(share));
        let budgets: Vec<Budget> = budgets.collect();
        let own = budgets.last().copied().unwrap_or(Budget::Unlimited);
        self.go_over(&budgets)?;
        let options = RunOptions {
            budget: own,
            ..self.engine.run.clone()
        };
        let session = opened
            .model
            .plan(&options)
            .map(|plan| (plan, opened.model))
            .and_then(|(plan, model)| model.into_session(plan, &options));
        match session {
            Ok(session) => {
                let member = Member {
                    session,
                    need,
                    inputs,
                };
                self.members.insert(name.into(), member);
                Ok(())
            }
            Err(error) => {
                self.divide_again()?;
                Err(error)
            }
        }
    }

    /// Gives a model's memory to the others.
    ///
    /// # Errors
    /// When another model cannot go over to its new share; the model is gone all the same.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.members.remove(name);
        self.divide_again()
    }

    /// Runs a model on so many rows, or on the shapes that it was opened with.
    ///
    /// # Errors
    /// As [`Session::run`] and [`Session::bind`]; [`Error::BadInput`] when there is no such model.
    pub fn run(
        &mut self,
        name: &str,
        inputs: &[TensorInfo],
        tensors: &[Tensor],
        outputs: &mut [&mut [u8]],
    ) -> Result<()> {
        let member = self
            .members
            .get_mut(name)
            .ok_or_else(|| Error::BadInput(format!("the model '{name}' is not loaded")))?;
        if member.session.inputs() != inputs {
            member.session.bind(&shapes(inputs))?;
        }
        let tensors: Vec<&[u8]> = tensors.iter().map(Tensor::bytes).collect();
        member.session.run(&tensors, outputs)
    }

    /// Where each model's memory goes.
    pub fn ledgers(&self) -> BTreeMap<String, Ledger> {
        let members = self.members.iter();
        members
            .map(|(name, m)| (name.clone(), *m.session.ledger()))
            .collect()
    }

    fn need(&self, opened: &Opened) -> Need {
        let options = RunOptions {
            // Only whose memory it is counts.
            budget: Budget::Engine(0),
            ..self.engine.run.clone()
        };
        let bounds = opened.model.bounds(&options);
        let least_bytes = bounds.smallest.total_bytes();
        Need {
            least_bytes,
            most_bytes: bounds.whole.total_bytes().max(least_bytes),
            weight: opened.urgency * opened.model.weight_bytes().max(1) as f64,
        }
    }

    fn divide_again(&mut self) -> Result<()> {
        let Some(budget) = self.budget_bytes else {
            return Ok(());
        };
        let needs: Vec<Need> = self.members.values().map(|m| m.need).collect();
        let shares = divided(budget, &needs).ok_or_else(|| too_small(budget, &needs))?;
        let budgets: Vec<Budget> = shares.into_iter().map(Budget::Engine).collect();
        self.go_over(&budgets)
    }

    /// Those that give memory up go first.
    fn go_over(&mut self, budgets: &[Budget]) -> Result<()> {
        let mut moves: Vec<(&mut Member, Budget)> = self
            .members
            .values_mut()
            .zip(budgets.iter().copied())
            .collect();
        let is_growth = |member: &Member, budget: &Budget| match budget {
            Budget::Engine(bytes) => member.session.budget_bytes().is_some_and(|b| b < *bytes),
            _ => true,
        };
        moves.sort_by_key(|(member, budget)| is_growth(member, budget));
        for (member, budget) in moves {
            let now = member.session.budget_bytes().map(Budget::Engine);
            if now != Some(budget) && budget != Budget::Unlimited {
                if member.session.inputs() != member.inputs {
                    member.session.bind(&shapes(&member.inputs))?;
                }
                member.session.set_budget(budget)?;
            }
        }
        Ok(())
    }
}

fn too_small(budget_bytes: u64, needs: &[Need]) -> Error {
    let least_bytes = needs.iter().map(|n| n.least_bytes).sum();
    let sum = Ledger {
        arena_bytes: least_bytes,
        ..Ledger::default()
    };
    Error::infeasible(budget_bytes, sum)
}

/// Shares of `budget_bytes`: the least for each, and of the rest by weight as long as it is of use. `None` when it is too
/// little.
fn divided(budget_bytes: u64, needs: &[Need]) -> Option<Vec<u64>> {
    let least: u64 = needs.iter().map(|n| n.least_bytes).sum();
    let mut rest = budget_bytes.checked_sub(least)?;
    let mut shares: Vec<u64> = needs.iter().map(|n| n.least_bytes).collect();
    let mut open: Vec<usize> = (0..needs.len()).collect();
    while !open.is_empty() {
        let weights: f64 = open.iter().map(|&i| needs[i].weight).sum();
        let part = |i: usize| (rest as f64 * (needs[i].weight / weights)) as u64;
        let full = (open
            .iter()
            .position(|&i| needs[i].most_bytes - shares[i] <= part(i)))
        .map(|at| open.remove(at));
        match full {
            // Wholly in memory; what it leaves is for the others.
            Some(i) => {
                rest -= needs[i].most_bytes - shares[i];
                shares[i] = needs[i].most_bytes;
            }
            None => {
                let parts: Vec<(usize, u64)> = open.iter().map(|&i| (i, part(i))).collect();
                for (i, more) in parts {
                    shares[i] += more;
                }
                break;
            }
        }
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_by_weight_and_use() {
        let need = |least_bytes, most_bytes, weight| Need {
            least_bytes,
            most_bytes,
            weight,
        };
        let needs = [need(10, 20, 1.0), need(10, 200, 1.0), need(10, 200, 2.0)];
        assert_eq!(divided(29, &needs), None);
        assert_eq!(divided(30, &needs), Some(vec![10, 10, 10]));
        assert_eq!(divided(130, &needs), Some(vec![20, 40, 70]));
        assert_eq!(divided(1000, &needs), Some(vec![20, 200, 200]));
        assert_eq!(divided(5, &[]), Some(vec![]));
    }

    proptest! {
        #[test]
        fn no_more_is_given_than_there_is(
            budget in 0u64..10_000,
            needs in prop::collection::vec((0u64..500, 0u64..3000, 0.1f64..10.0), 0..8),
        ) {
            let needs: Vec<Need> = needs.iter().map(|&(least_bytes, more, weight)| Need {
                least_bytes, most_bytes: least_bytes + more, weight,
            }).collect();
            let least: u64 = needs.iter().map(|n| n.least_bytes).sum();
            let shares = divided(budget, &needs);
            prop_assert_eq!(shares.is_some(), least <= budget);
            for (share, need) in shares.iter().flatten().zip(&needs) {
                prop_assert!((need.least_bytes..=need.most_bytes).contains(share));
            }
            prop_assert!(shares.iter().flatten().sum::<u64>() <= budget);
        }
    }
}
