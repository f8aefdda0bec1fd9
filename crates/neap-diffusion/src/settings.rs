//! `scheduler_config.json`: how a model was trained to see noise, and how its steps are spaced.

use crate::{Error, Result};
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// A way from noise to a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Song, Meng and Ermon 2021, *Denoising Diffusion Implicit Models*, equation 12 with η = 0.
    Ddim,
    /// Karras et al. 2022, *Elucidating the Design Space of Diffusion-Based Generative Models*, algorithm 1 without its second-order part.
    Euler,
    /// The same with fresh noise in each step: Song et al. 2021, *Score-Based Generative Modeling*, appendix F, as k-diffusion spaces it.
    EulerAncestral,
    /// Lu et al. 2022, *DPM-Solver++*, algorithm 2.
    DpmPlusPlus2M,
    /// Luo et al. 2023, *Latent Consistency Models*, algorithm 3.
    Lcm,
    /// Liu et al. 2022, *Pseudo Numerical Methods for Diffusion Models on Manifolds*, section 3.3, without Runge-Kutta steps.
    Pndm,
}

const KINDS: [(Kind, &str, &[&str]); 6] = [
    (Kind::Ddim, "ddim", &["DDIMScheduler"]),
    (Kind::Euler, "euler", &["EulerDiscreteScheduler"]),
    (
        Kind::EulerAncestral,
        "euler-a",
        &["EulerAncestralDiscreteScheduler"],
    ),
    (
        Kind::DpmPlusPlus2M,
        "dpm++2m",
        &["DPMSolverMultistepScheduler"],
    ),
    (Kind::Lcm, "lcm", &["LCMScheduler"]),
    (Kind::Pndm, "pndm", &["PNDMScheduler"]),
];

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Kind, String> {
        let found = KINDS.iter().find(|(_, name, _)| *name == text);
        found.map(|(kind, ..)| *kind).ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().map(|(_, name, _)| *name).collect();
            format!(
                "there is no scheduler '{text}': there are {}",
                names.join(", ")
            )
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = KINDS.iter().find(|(kind, ..)| kind == self);
        f.write_str(found.map_or("", |(_, name, _)| name))
    }
}

impl Kind {
    fn of_class(class: &str) -> Option<Kind> {
        let found = KINDS.iter().find(|(.., classes)| classes.contains(&class));
        found.map(|(kind, ..)| *kind)
    }

    /// What `diffusers` takes where a file says nothing.
    pub(crate) fn usual_spacing(self) -> Spacing {
        match self {
            Kind::Ddim | Kind::Lcm | Kind::Pndm => Spacing::Leading,
            Kind::Euler | Kind::EulerAncestral | Kind::DpmPlusPlus2M => Spacing::Linspace,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BetaSchedule {
    Linear,
    ScaledLinear,
}

/// Lin et al. 2024, *Common Diffusion Noise Schedules and Sample Steps are Flawed*, table 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Spacing {
    Linspace,
    Leading,
    Trailing,
}

/// What a network's output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Prediction {
    /// The noise.
    Epsilon,
    /// Salimans and Ho 2022, *Progressive Distillation*, appendix D.
    #[serde(rename = "v_prediction")]
    Velocity,
    /// The picture itself.
    Sample,
}

/// The file, as far as it is followed; what would change a picture and is not followed is refused.
#[derive(Debug, Clone, Deserialize)]
pub struct Settings {
    #[serde(rename = "_class_name")]
    class: Option<String>,
    #[serde(default = "trained_steps")]
    pub(crate) num_train_timesteps: usize,
    #[serde(default = "beta_start")]
    pub(crate) beta_start: f64,
    #[serde(default = "beta_end")]
    pub(crate) beta_end: f64,
    #[serde(default = "linear")]
    pub(crate) beta_schedule: BetaSchedule,
    #[serde(default)]
    pub(crate) steps_offset: usize,
    pub(crate) timestep_spacing: Option<Spacing>,
    #[serde(default = "epsilon")]
    pub(crate) prediction_type: Prediction,
    pub(crate) set_alpha_to_one: Option<bool>,
    pub(crate) clip_sample: Option<bool>,
    #[serde(default = "one")]
    pub(crate) clip_sample_range: f64,
    #[serde(default = "lcm_steps")]
    pub(crate) original_inference_steps: usize,
    #[serde(default = "ten")]
    pub(crate) timestep_scaling: f64,
    #[serde(default)]
    use_karras_sigmas: bool,
    #[serde(default)]
    use_exponential_sigmas: bool,
    #[serde(default)]
    use_beta_sigmas: bool,
    #[serde(default)]
    rescale_betas_zero_snr: bool,
    #[serde(default)]
    thresholding: bool,
    trained_betas: Option<Vec<f64>>,
}

fn trained_steps() -> usize {
    1000
}

fn beta_start() -> f64 {
    0.0001
}

fn beta_end() -> f64 {
    0.02
}

fn linear() -> BetaSchedule {
    BetaSchedule::Linear
}

fn epsilon() -> Prediction {
    Prediction::Epsilon
}

fn one() -> f64 {
    1.0
}

fn lcm_steps() -> usize {
    50
}

fn ten() -> f64 {
    10.0
}

/// More than any model was trained with; a table has so many entries.
const MOST_TRAINED_STEPS: usize = 100_000;

impl Settings {
    /// # Errors
    /// The text is no such file, or asks for something that is not followed.
    pub fn read(json: &str) -> Result<Settings> {
        let settings: Settings =
            serde_json::from_str(json).map_err(|e| Error::new(e.to_string()))?;
        let unknown = [
            ("use_karras_sigmas", settings.use_karras_sigmas),
            ("use_exponential_sigmas", settings.use_exponential_sigmas),
            ("use_beta_sigmas", settings.use_beta_sigmas),
            ("rescale_betas_zero_snr", settings.rescale_betas_zero_snr),
            ("thresholding", settings.thresholding),
            ("trained_betas", settings.trained_betas.is_some()),
        ];
        if let Some((name, _)) = unknown.iter().find(|(_, is_set)| *is_set) {
            return Err(Error::new(format!("{name} is not supported")));
        }
        let betas = settings.beta_start..=settings.beta_end;
        if !(betas.start() > &0.0 && betas.end() < &1.0 && betas.start() <= betas.end()) {
            return Err(Error::new(
                "beta_start and beta_end are no rising shares of 1",
            ));
        }
        if !(2..=MOST_TRAINED_STEPS).contains(&settings.num_train_timesteps) {
            return Err(Error::new(format!(
                "num_train_timesteps is not from 2 to {MOST_TRAINED_STEPS}"
            )));
        }
        Ok(settings)
    }

    /// The scheduler that the file is of.
    ///
    /// # Errors
    /// It names none that is known.
    pub fn kind(&self) -> Result<Kind> {
        let class = self.class.as_deref().unwrap_or("nothing");
        Kind::of_class(class).ok_or_else(|| {
            Error::new(format!(
                "its scheduler is {class}, which is not supported: choose one with --scheduler"
            ))
        })
    }
}
