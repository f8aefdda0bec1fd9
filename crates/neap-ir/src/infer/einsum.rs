//! Einsum equations: parsing, and the size of every letter.

use super::{Inferred, Operands};
use crate::TensorType;

/// A parsed equation with one label per axis of each operand.
///
/// Labels are small integers: the letters first, then the axes that `...` stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Einsum {
    /// Labels of each input's axes.
    pub inputs: Vec<Vec<usize>>,
    pub output: Vec<usize>,
    /// Size of every label; an input axis of size 1 broadcasts against it.
    pub sizes: Vec<usize>,
}

const LETTERS: usize = 52;

impl Einsum {
    /// Parses `equation` for operands of these shapes.
    ///
    /// # Errors
    /// What is wrong with the equation or does not fit the shapes, in words.
    pub fn parse(equation: &str, shapes: &[&[usize]]) -> Result<Einsum, String> {
        let compact: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match compact.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (compact.as_str(), None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != shapes.len() {
            return Err(format!(
                "equation '{equation}' has {} terms for {} inputs",
                terms.len(),
                shapes.len()
            ));
        }
        let mut terms_labels = Vec::new();
        let mut ellipsis_rank = 0;
        for (term, shape) in terms.iter().zip(shapes) {
            let term = Term::parse(term)?;
            let letters = term.before.len() + term.after.len();
            let extra = match shape.len().checked_sub(letters) {
                Some(0) => 0,
                Some(n) if term.ellipsis => n,
                _ => {
                    return Err(format!(
                        "equation '{equation}' does not fit an input of rank {}",
                        shape.len()
                    ));
                }
            };
            ellipsis_rank = ellipsis_rank.max(extra);
            terms_labels.push((term, extra));
        }
        let mut sizes = vec![None; LETTERS + ellipsis_rank];
        let mut uses = vec![0usize; LETTERS];
        let mut inputs = Vec::new();
        for ((term, extra), shape) in terms_labels.iter().zip(shapes) {
            let labels = term.labels(*extra, ellipsis_rank);
            for (&label, &dim) in labels.iter().zip(shape.iter()) {
                if label < LETTERS {
                    uses[label] += 1;
                }
                match sizes[label] {
                    None | Some(1) => sizes[label] = Some(dim),
                    Some(size) if size == dim || dim == 1 => {}
                    Some(size) => {
                        return Err(format!(
                            "equation '{equation}' meets sizes {size} and {dim}"
                        ));
                    }
                }
            }
            inputs.push(labels);
        }
        let output = match right {
            Some(right) => {
                let term = Term::parse(right)?;
                let extra = if term.ellipsis { ellipsis_rank } else { 0 };
                term.labels(extra, ellipsis_rank)
            }
            // Implicit: the broadcast axes, then letters used once in alphabetical order.
            None => (LETTERS..LETTERS + ellipsis_rank)
                .chain((0..LETTERS).filter(|&l| uses[l] == 1))
                .collect(),
        };
        for (i, label) in output.iter().enumerate() {
            if output[..i].contains(label) {
                return Err(format!("equation '{equation}' repeats an output letter"));
            }
            if !inputs.iter().any(|labels| labels.contains(label)) {
                return Err(format!("equation '{equation}' makes up an output letter"));
            }
        }
        Ok(Einsum {
            inputs,
            output,
            sizes: sizes.into_iter().map(|size| size.unwrap_or(1)).collect(),
        })
    }

    pub fn output_shape(&self) -> Vec<usize> {
        self.output.iter().map(|&l| self.sizes[l]).collect()
    }

    /// Labels that are summed away, in the order in which they first appear.
    pub fn summed(&self) -> Vec<usize> {
        let mut summed = Vec::new();
        for &label in self.inputs.iter().flatten() {
            if !self.output.contains(&label) && !summed.contains(&label) {
                summed.push(label);
            }
        }
        summed
    }
}

struct Term {
    before: Vec<usize>,
    ellipsis: bool,
    after: Vec<usize>,
}

impl Term {
    fn parse(text: &str) -> Result<Term, String> {
        let letters = |part: &str| {
            part.chars()
                .map(|c| match c {
                    'A'..='Z' => Ok(c as usize - 'A' as usize),
                    'a'..='z' => Ok(26 + c as usize - 'a' as usize),
                    _ => Err(format!("equation has a stray '{c}'")),
                })
                .collect::<Result<Vec<usize>, String>>()
        };
        Ok(match text.split_once("...") {
            Some((before, after)) => Term {
                before: letters(before)?,
                ellipsis: true,
                after: letters(after)?,
            },
            None => Term {
                before: letters(text)?,
                ellipsis: false,
                after: Vec::new(),
            },
        })
    }

    fn labels(&self, extra: usize, ellipsis_rank: usize) -> Vec<usize> {
        let broadcast = LETTERS + ellipsis_rank - extra..LETTERS + ellipsis_rank;
        self.before
            .iter()
            .copied()
            .chain(broadcast)
            .chain(self.after.iter().copied())
            .collect()
    }
}

pub(super) fn infer(equation: &str, o: &Operands) -> Inferred<TensorType> {
    let first = o.get(0)?;
    let mut shapes = Vec::new();
    for i in 0..o.inputs.len() {
        let ty = o.get(i)?;
        o.same_dtype(first, ty)?;
        shapes.push(ty.shape.as_slice());
    }
    o.require(super::is_numeric(first.dtype), "takes numbers")?;
    match Einsum::parse(equation, &shapes) {
        Ok(parsed) => Ok(TensorType::new(first.dtype, &parsed.output_shape())),
        Err(reason) => o.fail(reason),
    }
}
