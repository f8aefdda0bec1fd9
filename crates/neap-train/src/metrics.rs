//! Loss and accuracy over many samples.

use neap_autodiff::Loss;
use neap_ir::{Literal, TensorType};
use serde::{Deserialize, Serialize};

/// Sums over samples. Kept as bits, so that a training which goes on adds to the very same numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    loss_bits: u64,
    /// What losses are means over: samples, tokens, or numbers.
    places: u64,
    right: u64,
    judged: u64,
}

impl Tally {
    /// Adds a loss that is the mean over `places`.
    pub fn add_mean(&mut self, loss: f64, places: u64) {
        self.add_sum(loss * places as f64, places);
    }

    fn add_sum(&mut self, loss: f64, places: u64) {
        self.loss_bits = (f64::from_bits(self.loss_bits) + loss).to_bits();
        self.places += places;
    }

    /// Adds how many of the first `count` samples are right.
    pub fn add_accuracy(&mut self, judgement: &Judgement) {
        self.right += judgement.right;
        self.judged += judgement.judged;
    }

    /// Adds loss and accuracy.
    pub fn add(&mut self, judgement: &Judgement) {
        self.add_sum(judgement.loss, judgement.places);
        self.add_accuracy(judgement);
    }

    /// Mean loss; `None` of nothing.
    pub fn loss(&self) -> Option<f64> {
        (self.places > 0).then(|| f64::from_bits(self.loss_bits) / self.places as f64)
    }

    /// Share of what is right, where the loss has such a thing.
    pub fn accuracy(&self) -> Option<f64> {
        (self.judged > 0).then(|| self.right as f64 / self.judged as f64)
    }
}

/// What a batch's results are worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// Sum over places, in f64.
    pub loss: f64,
    pub places: u64,
    pub right: u64,
    pub judged: u64,
}

/// Compares a model's result with its target, for the first `count` samples of a batch. A class is right where its score is the
/// highest (the first of equal ones); a probability, where the score is on its side of 0.
pub fn judge(
    loss: &Loss,
    result: &[u8],
    ty: &TensorType,
    target: &Literal,
    count: usize,
) -> Judgement {
    // Read where they lie: those of a language model take as much as its table.
    let scores = result.as_chunks().0;
    let batch = ty.shape.first().copied().unwrap_or(1).max(1);
    match *loss {
        Loss::CrossEntropy {
            class_axis,
            label_smoothing,
            ..
        } => {
            let classes = target.to_i64_vec().unwrap_or_default();
            let places = classes.len() / batch * count;
            let axis = Axis::of(&ty.shape, class_axis);
            classes_of(scores, &classes[..places], axis, label_smoothing.into())
        }
        _ => {
            let wanted = target.as_f32().unwrap_or_default();
            let places = wanted.len() / batch * count;
            numbers(loss, &scores[..places], &wanted[..places])
        }
    }
}

/// How an axis lies in a tensor.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    stride: usize,
}

impl Axis {
    fn of(shape: &[usize], axis: usize) -> Axis {
        Axis {
            size: shape[axis],
            stride: shape[axis + 1..].iter().product(),
        }
    }
}

fn classes_of(scores: &[[u8; 4]], classes: &[i64], axis: Axis, smoothing: f64) -> Judgement {
    let mut judgement = Judgement {
        loss: 0.0,
        places: classes.len() as u64,
        right: 0,
        judged: classes.len() as u64,
    };
    let mut row = vec![0.0; axis.size];
    for (place, &class) in classes.iter().enumerate() {
        let first = place / axis.stride * axis.stride * axis.size + place % axis.stride;
        for (class, score) in row.iter_mut().enumerate() {
            *score = f32::from_le_bytes(scores[first + class * axis.stride]).into();
        }
        let highest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|s| (s - highest).exp()).sum();
        let log = |class: usize| row[class] - highest - sum.ln();
        let class = usize::try_from(class)
            .unwrap_or(usize::MAX)
            .min(axis.size - 1);
        let mean = (0..axis.size).map(log).sum::<f64>() / axis.size as f64;
        judgement.loss -= (1.0 - smoothing) * log(class) + smoothing * mean;
        let best = row.iter().position(|&s| s == highest);
        judgement.right += u64::from(best == Some(class));
    }
    judgement
}

fn numbers(loss: &Loss, scores: &[[u8; 4]], wanted: &[f32]) -> Judgement {
    let mut judgement = Judgement {
        loss: 0.0,
        places: wanted.len() as u64,
        right: 0,
        judged: 0,
    };
    for (&x, &z) in scores.iter().zip(wanted) {
        let (x, z) = (f64::from(f32::from_le_bytes(x)), f64::from(z));
        judgement.loss += match loss {
            Loss::MeanAbsolute => (x - z).abs(),
            Loss::BinaryCrossEntropy => {
                judgement.judged += 1;
                judgement.right += u64::from((x > 0.0) == (z > 0.5));
                x.max(0.0) + (-x.abs()).exp().ln_1p() - x * z
            }
            _ => (x - z) * (x - z),
        };
    }
    judgement
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_ir::DType;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn cross_entropy(class_axis: usize, label_smoothing: f32) -> Loss {
        Loss::CrossEntropy {
            class_axis,
            label_smoothing,
            ignore_index: None,
        }
    }

    #[test]
    fn classes_along_either_axis() {
        // Two samples of three classes; the second is padding.
        let flat = TensorType::new(DType::F32, &[2, 3]);
        let result = bytes(&[1.0, 3.0, 2.0, 0.0, 0.0, 9.0]);
        let target = Literal::from_i64(&[2], &[1, 0]);
        let one = judge(&cross_entropy(1, 0.0), &result, &flat, &target, 1);
        let expected = -(3f64.exp() / (1f64.exp() + 3f64.exp() + 2f64.exp())).ln();
        assert!((one.loss - expected).abs() < 1e-12);
        assert_eq!((one.places, one.right, one.judged), (1, 1, 1));
        let both = judge(&cross_entropy(1, 0.0), &result, &flat, &target, 2);
        assert_eq!((both.places, both.right), (2, 1));
        // The same numbers with classes last, and first.
        let last = TensorType::new(DType::F32, &[1, 2, 3]);
        let target = Literal::from_i64(&[1, 2], &[1, 0]);
        let tokens = judge(&cross_entropy(2, 0.1), &result, &last, &target, 1);
        let turned = TensorType::new(DType::F32, &[1, 3, 2]);
        let result = bytes(&[1.0, 0.0, 3.0, 0.0, 2.0, 9.0]);
        let pixels = judge(&cross_entropy(1, 0.1), &result, &turned, &target, 1);
        assert_eq!(tokens, pixels);
    }

    #[test]
    fn losses_of_numbers() {
        let ty = TensorType::new(DType::F32, &[1, 2]);
        let target = Literal::from_f32(&[1, 2], &[1.0, 0.0]);
        let of = |loss| judge(&loss, &bytes(&[3.0, -1.0]), &ty, &target, 1);
        assert_eq!(of(Loss::MeanSquare).loss, 5.0);
        assert_eq!(of(Loss::MeanAbsolute).loss, 3.0);
        let binary = of(Loss::BinaryCrossEntropy);
        let expected = (1.0 + (-3f64).exp()).ln() + (1.0 + (-1f64).exp()).ln();
        assert!((binary.loss - expected).abs() < 1e-12);
        assert_eq!((binary.right, binary.judged), (2, 2));
    }

    #[test]
    fn means_are_over_all_places() {
        let mut tally = Tally::default();
        assert_eq!((tally.loss(), tally.accuracy()), (None, None));
        tally.add_mean(1.0, 3);
        tally.add_mean(3.0, 1);
        assert_eq!(tally.loss(), Some(1.5));
        let text = serde_json::to_string(&tally).unwrap();
        assert_eq!(serde_json::from_str::<Tally>(&text).unwrap(), tally);
    }
}
