//! What a layer's values look like: mean and variance per group of channels.
//!
//! Builders carry these along to pick weight scales and BatchNorm statistics that fit, so that
//! activations stay near unit size however deep the network. The arithmetic uses only exactly
//! rounded operations, so every machine derives the same weights.

/// A run of channels with the same statistics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Group {
    pub channels: usize,
    pub mean: f64,
    pub var: f64,
}

/// Mean and variance over all channels of `groups`; the scatter of the groups' means counts
/// as variance.
pub(crate) fn pooled(groups: &[Group]) -> (f64, f64) {
    let channels: f64 = groups.iter().map(|g| g.channels as f64).sum();
    let mean = groups
        .iter()
        .map(|g| g.channels as f64 * g.mean)
        .sum::<f64>()
        / channels;
    let second = groups
        .iter()
        .map(|g| g.channels as f64 * (g.var + (g.mean - mean) * (g.mean - mean)))
        .sum::<f64>()
        / channels;
    (mean, second)
}

/// Mean and variance of `f(x)` for x bell-shaped with the given mean and variance.
pub(crate) fn through(mean: f64, var: f64, f: impl Fn(f64) -> f64) -> (f64, f64) {
    // A binomial with 64 trials stands for the normal: weights by recurrence, no `exp`.
    const TRIALS: i32 = 64;
    let half_width = (f64::from(TRIALS) / 4.0).sqrt();
    let std = var.sqrt();
    let mut weight = 1.0;
    let (mut total, mut first, mut second) = (0.0, 0.0, 0.0);
    for k in 0..=TRIALS {
        let y = f(mean + std * (f64::from(k) - f64::from(TRIALS) / 2.0) / half_width);
        total += weight;
        first += weight * y;
        second += weight * y * y;
        weight *= f64::from(TRIALS - k) / f64::from(k + 1);
    }
    let out_mean = first / total;
    (out_mean, second / total - out_mean * out_mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectifier_moments_match_the_closed_form() {
        let (mean, var) = through(0.0, 1.0, |x| x.max(0.0));
        assert!((mean - 0.3989).abs() < 0.01, "{mean}");
        assert!((var - 0.3408).abs() < 0.01, "{var}");
        let (mean, var) = through(3.0, 4.0, |x| x);
        assert!((mean - 3.0).abs() < 1e-9 && (var - 4.0).abs() < 1e-9);
    }

    #[test]
    fn pooling_counts_the_scatter_of_means() {
        let g = |channels, mean, var| Group {
            channels,
            mean,
            var,
        };
        assert_eq!(pooled(&[g(1, 0.0, 1.0), g(1, 2.0, 1.0)]), (1.0, 2.0));
        assert_eq!(pooled(&[g(3, 0.5, 2.0)]), (0.5, 2.0));
    }
}
