//! The noise that a model was trained with, and at which of its steps a picture is looked at.

use crate::settings::{BetaSchedule, Kind, Settings, Spacing};
use crate::{Error, Result};

/// The share of the picture that is left after each trained step (ᾱ of Ho et al. 2020, *Denoising Diffusion Probabilistic Models*, section 2).
pub(crate) fn shares(settings: &Settings) -> Vec<f64> {
    let (start, end) = (settings.beta_start, settings.beta_end);
    let betas = match settings.beta_schedule {
        BetaSchedule::Linear => linspace(start as f32, end as f32, settings.num_train_timesteps),
        BetaSchedule::ScaledLinear => {
            let (start, end) = (start.sqrt() as f32, end.sqrt() as f32);
            let mut roots = linspace(start, end, settings.num_train_timesteps);
            roots.iter_mut().for_each(|b| *b *= *b);
            roots
        }
    };
    let mut left = 1.0;
    let shares = betas.iter().map(|beta| {
        left *= f64::from(1.0 - beta);
        // Models were trained with single precision, and so are the tables of others.
        f64::from(left as f32)
    });
    shares.collect()
}

/// From both ends to the middle, as PyTorch does it: rounding of trained tables depends on it.
fn linspace(start: f32, end: f32, count: usize) -> Vec<f32> {
    let step = (end - start) / (count - 1) as f32;
    let at = |i: usize| match i < count / 2 {
        true => start + step * i as f32,
        false => end - step * (count - i - 1) as f32,
    };
    (0..count).map(at).collect()
}

/// Trained steps at which the network is asked, from much noise to little.
///
/// # Errors
/// There are not so many.
pub(crate) fn timesteps(kind: Kind, settings: &Settings, steps: usize) -> Result<Vec<f64>> {
    let trained = settings.num_train_timesteps;
    let most = match kind {
        Kind::Lcm => settings.original_inference_steps.min(trained),
        // It looks one further than its last step.
        Kind::DpmPlusPlus2M => trained - 1,
        _ => trained,
    };
    if !(1..=most).contains(&steps) {
        return Err(Error::new(format!(
            "{kind} takes from 1 to {most} steps, not {steps}"
        )));
    }
    if kind == Kind::Lcm {
        return Ok(consistency_steps(settings, steps));
    }
    let spacing = settings.timestep_spacing.unwrap_or(kind.usual_spacing());
    // The solver of second order leaves out what would be the last of one more.
    let of = steps + usize::from(kind == Kind::DpmPlusPlus2M && spacing != Spacing::Trailing);
    let is_whole = !matches!(kind, Kind::Euler | Kind::EulerAncestral);
    let mut found: Vec<f64> = match spacing {
        Spacing::Linspace => {
            let step = (trained - 1) as f64 / (of - 1).max(1) as f64;
            let at = |i: usize| match is_whole {
                true => (i as f64 * step).round_ties_even(),
                false => i as f64 * step,
            };
            (0..of).rev().map(at).collect()
        }
        Spacing::Leading => {
            let ratio = trained / of;
            let at = |i: usize| (i * ratio + settings.steps_offset).min(trained - 1) as f64;
            (0..of).rev().map(at).collect()
        }
        Spacing::Trailing => {
            let ratio = trained as f64 / of as f64;
            let at = |i: usize| (trained as f64 - i as f64 * ratio).round_ties_even() - 1.0;
            (0..of).map(at).map(|t| t.max(0.0)).collect()
        }
    };
    found.truncate(steps);
    if kind == Kind::Pndm && steps > 1 {
        // The second step is taken twice: first to see where it leads.
        found.insert(1, found[1]);
    }
    Ok(found)
}

/// Evenly among those that the model was distilled for.
fn consistency_steps(settings: &Settings, steps: usize) -> Vec<f64> {
    let original = settings
        .original_inference_steps
        .min(settings.num_train_timesteps);
    let ratio = settings.num_train_timesteps / original;
    let at = |i: usize| original - (i * original) / steps;
    (0..steps).map(|i| (at(i) * ratio - 1) as f64).collect()
}

/// Noise as a multiple of the picture (σ of Karras et al. 2022, table 1) at a trained step, between two where it is none.
pub(crate) fn sigma(shares: &[f64], timestep: f64) -> f64 {
    let of = |i: usize| ((1.0 - shares[i]) / shares[i]).sqrt();
    let low = (timestep.max(0.0) as usize).min(shares.len() - 1);
    let high = (low + 1).min(shares.len() - 1);
    let part = timestep - low as f64;
    of(low) + (of(high) - of(low)) * part
}
