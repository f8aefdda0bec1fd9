//! From noise to a picture, a step at a time.
//!
//! Each method keeps an estimate of the whole picture, x₀, which is a sum of the latents and the network's output, and goes some way
//! towards it. So a step is a few sums over all values, whose factors depend on the step alone.

use crate::noise::Noise;
use crate::settings::{Kind, Prediction, Settings};
use crate::spacing::{shares, sigma, timesteps};
use crate::{Error, Result};

/// Steps of one picture. Another one's are those of a clone that was made before the first step.
#[derive(Clone)]
pub struct Sampler {
    kind: Kind,
    settings: Settings,
    shares: Vec<f64>,
    timesteps: Vec<f64>,
    steps: usize,
    /// The next step.
    at: usize,
    first: usize,
    /// What earlier steps found, the latest last: pictures, or outputs of the network.
    history: Vec<Vec<f32>>,
    /// Where the step that is taken twice began.
    kept: Vec<f32>,
}

/// Parts of picture and noise in latents at a step; their squares add up to 1, or the first is 1.
#[derive(Clone, Copy)]
struct Mix {
    picture: f64,
    noise: f64,
}

impl Sampler {
    /// # Errors
    /// The method does not take so many steps.
    pub fn new(kind: Kind, settings: &Settings, steps: usize) -> Result<Sampler> {
        Ok(Sampler {
            kind,
            shares: shares(settings),
            timesteps: timesteps(kind, settings, steps)?,
            settings: settings.clone(),
            steps,
            at: 0,
            first: 0,
            history: Vec::new(),
            kept: Vec::new(),
        })
    }

    /// Leaves out the first steps, for latents that are a picture with some noise: a strength of 1 leaves out none.
    ///
    /// # Errors
    /// No step is left.
    pub fn with_strength(mut self, strength: f64) -> Result<Sampler> {
        let taken = ((self.steps as f64 * strength) as usize).min(self.steps);
        if taken == 0 {
            return Err(Error::new(format!(
                "a strength of {strength} leaves none of {} steps",
                self.steps
            )));
        }
        self.first = self.steps - taken;
        self.at = self.first;
        Ok(self)
    }

    /// At which trained steps the network is asked.
    pub fn timesteps(&self) -> &[f64] {
        &self.timesteps[self.first..]
    }

    fn is_in_sigmas(&self) -> bool {
        matches!(self.kind, Kind::Euler | Kind::EulerAncestral)
    }

    /// What the first latents are, as a multiple of noise.
    pub fn initial_scale(&self) -> f64 {
        if !self.is_in_sigmas() {
            return 1.0;
        }
        let most = sigma(&self.shares, self.timesteps[0]);
        let spacing = self.settings.timestep_spacing;
        match spacing.unwrap_or(self.kind.usual_spacing()) {
            crate::settings::Spacing::Leading => (most * most + 1.0).sqrt(),
            _ => most,
        }
    }

    /// Puts as much noise on a picture as the first step expects.
    pub fn add_noise(&self, latents: &mut [f32], noise: &[f32]) {
        let mix = self.mix(self.first);
        for (x, n) in latents.iter_mut().zip(noise) {
            *x = (mix.picture * f64::from(*x) + mix.noise * f64::from(*n)) as f32;
        }
    }

    /// What the network is given at this step: the latents, scaled so that picture and noise are shares of 1.
    pub fn input(&self, latents: &[f32], input: &mut [f32]) {
        let mix = self.mix(self.at);
        let scale = match self.is_in_sigmas() {
            true => 1.0 / (mix.noise * mix.noise + 1.0).sqrt(),
            false => 1.0,
        };
        for (to, x) in input.iter_mut().zip(latents) {
            *to = (f64::from(*x) * scale) as f32;
        }
    }

    /// At step `index` of the list.
    fn mix(&self, index: usize) -> Mix {
        let timestep = self.timesteps[index.min(self.timesteps.len() - 1)];
        if self.is_in_sigmas() {
            return Mix {
                picture: 1.0,
                noise: sigma(&self.shares, timestep),
            };
        }
        Mix::of_share(self.shares[timestep as usize])
    }

    /// Where a step of the methods that count trained steps leads: so many trained steps further, or to the end.
    fn before(&self, timestep: f64) -> Mix {
        let ratio = (self.settings.num_train_timesteps / self.steps) as f64;
        let before = timestep - ratio;
        if before >= 0.0 {
            return Mix::of_share(self.shares[before as usize]);
        }
        let default = self.kind != Kind::Pndm;
        Mix::of_share(match self.settings.set_alpha_to_one.unwrap_or(default) {
            true => 1.0,
            false => self.shares[0],
        })
    }

    /// Takes the step, with what the network gave for [`Sampler::input`]. Some methods draw noise.
    pub fn step(&mut self, output: &[f32], latents: &mut [f32], noise: &mut Noise) {
        let timestep = self.timesteps[self.at.min(self.timesteps.len() - 1)];
        match self.kind {
            Kind::Ddim => self.ddim(timestep, output, latents),
            Kind::Euler | Kind::EulerAncestral => self.euler(output, latents, noise),
            Kind::DpmPlusPlus2M => self.solver(output, latents),
            Kind::Lcm => self.consistency(timestep, output, latents, noise),
            Kind::Pndm => self.multistep(timestep, output, latents),
        }
        self.at += 1;
    }

    /// The picture as a sum: factors of the latents and of the output.
    fn picture(&self, mix: Mix) -> (f64, f64) {
        let Mix { picture, noise } = mix;
        // In shares of 1, which latents of the Euler methods are not.
        let norm = (picture * picture + noise * noise).sqrt();
        let (a, s) = (picture / norm, noise / norm);
        match self.settings.prediction_type {
            Prediction::Epsilon => (1.0 / picture, -s / a),
            Prediction::Velocity => (a / norm, -s),
            Prediction::Sample => (0.0, 1.0),
        }
    }

    fn clipped(&self, default: bool) -> Option<f64> {
        let clips = self.settings.clip_sample.unwrap_or(default);
        clips.then_some(self.settings.clip_sample_range)
    }

    fn ddim(&self, timestep: f64, output: &[f32], latents: &mut [f32]) {
        let (mix, next) = (self.mix(self.at), self.before(timestep));
        let (of_latents, of_output) = self.picture(mix);
        let range = self.clipped(true).unwrap_or(f64::INFINITY);
        each(latents, output, |x, out| {
            let picture = of_latents * x + of_output * out;
            let noise = (x - mix.picture * picture) / mix.noise;
            next.picture * picture.clamp(-range, range) + next.noise * noise
        });
    }

    fn euler(&self, output: &[f32], latents: &mut [f32], noise: &mut Noise) {
        let from = self.mix(self.at);
        let to = match self.at + 1 < self.timesteps.len() {
            true => self.mix(self.at + 1).noise,
            false => 0.0,
        };
        let (of_latents, of_output) = self.picture(from);
        let is_ancestral = self.kind == Kind::EulerAncestral;
        // As much noise as went comes back, so that its square is `to`'s.
        let (to2, from2) = (to * to, from.noise * from.noise);
        let up = match is_ancestral {
            true => (to2 * (from2 - to2) / from2).sqrt(),
            false => 0.0,
        };
        let down = (to2 - up * up).max(0.0).sqrt();
        let kept = down / from.noise;
        each(latents, output, |x, out| {
            kept * x + (1.0 - kept) * (of_latents * x + of_output * out)
        });
        if is_ancestral {
            // Drawn in the last step, too, as others do: a seed's next tensor depends on it.
            let fresh = noise.draw(latents.len());
            each(latents, &fresh, |x, n| x + up * n);
        }
    }

    fn solver(&mut self, output: &[f32], latents: &mut [f32]) {
        let from = self.mix(self.at);
        let is_last = self.at + 1 == self.timesteps.len();
        let to = match is_last {
            false => self.mix(self.at + 1),
            true => Mix::of_share(1.0),
        };
        let (of_latents, of_output) = self.picture(from);
        let mut picture = latents.to_vec();
        each(&mut picture, output, |x, out| {
            of_latents * x + of_output * out
        });
        // Half the logarithm of the ratio of signal and noise; endless at the end.
        let lambda = |mix: Mix| mix.picture.ln() - mix.noise.ln();
        let h = lambda(to) - lambda(from);
        let (kept, gained) = (to.noise / from.noise, -to.picture * (-h).exp_m1());
        match self.history.last().filter(|_| !is_last) {
            None => each(latents, &picture, |x, p| kept * x + gained * p),
            Some(before) => {
                let h_before = lambda(from) - lambda(self.mix(self.at - 1));
                let ahead = 0.5 * h / h_before;
                let mut led = picture.clone();
                each(&mut led, before, |p, b| p + ahead * (p - b));
                each(latents, &led, |x, p| kept * x + gained * p);
            }
        }
        self.history = vec![picture];
    }

    fn consistency(&self, timestep: f64, output: &[f32], latents: &mut [f32], noise: &mut Noise) {
        let mix = self.mix(self.at);
        let (of_latents, of_output) = self.picture(mix);
        let range = self.clipped(false).unwrap_or(f64::INFINITY);
        // Song et al. 2023, *Consistency Models*, appendix C, with σ of data 0.5.
        let scaled = timestep * self.settings.timestep_scaling;
        let square = scaled * scaled + 0.25;
        let (of_itself, of_picture) = (0.25 / square, scaled / square.sqrt());
        each(latents, output, |x, out| {
            let picture = of_latents * x + of_output * out;
            of_picture * picture.clamp(-range, range) + of_itself * x
        });
        if self.at + 1 < self.timesteps.len() {
            let next = self.mix(self.at + 1);
            let fresh = noise.draw(latents.len());
            each(latents, &fresh, |x, n| next.picture * x + next.noise * n);
        }
    }

    fn multistep(&mut self, timestep: f64, output: &[f32], latents: &mut [f32]) {
        // Begun with a picture, the list may have left the double step behind; the count begins all the same.
        let ratio = (self.settings.num_train_timesteps / self.steps) as f64;
        let is_again = self.at == self.first + 1;
        let timestep = match is_again {
            true => timestep + ratio,
            false => timestep,
        };
        let mut led = output.to_vec();
        if is_again {
            latents.copy_from_slice(&self.kept);
            let first = &self.history[0];
            each(&mut led, first, |e, first| (e + first) / 2.0);
        } else {
            self.history.push(output.to_vec());
            if self.history.len() > 4 {
                self.history.remove(0);
            }
            self.kept = match self.at == self.first {
                true => latents.to_vec(),
                false => Vec::new(),
            };
            // Adams and Bashforth, of as many steps as are known; the latest first.
            let weights: &[f64] = match self.history.len() {
                1 => &[1.0],
                2 => &[3.0 / 2.0, -1.0 / 2.0],
                3 => &[23.0 / 12.0, -16.0 / 12.0, 5.0 / 12.0],
                _ => &[55.0 / 24.0, -59.0 / 24.0, 37.0 / 24.0, -9.0 / 24.0],
            };
            for (i, value) in led.iter_mut().enumerate() {
                let known = self.history.iter().rev().zip(weights);
                *value = known.map(|(e, w)| w * f64::from(e[i])).sum::<f64>() as f32;
            }
        }
        let from = Mix::of_share(self.shares[(timestep as usize).min(self.shares.len() - 1)]);
        let to = self.before(timestep);
        let (of_latents, of_output) = self.picture(from);
        // Equation 11 is the step of DDIM.
        each(latents, &led, |x, e| {
            let picture = of_latents * x + of_output * e;
            let noise = (x - from.picture * picture) / from.noise;
            to.picture * picture + to.noise * noise
        });
    }
}

impl Mix {
    fn of_share(share: f64) -> Mix {
        Mix {
            picture: share.sqrt(),
            noise: (1.0 - share).sqrt(),
        }
    }
}

/// Changes each value by one of another tensor.
fn each(values: &mut [f32], others: &[f32], change: impl Fn(f64, f64) -> f64) {
    for (value, other) in values.iter_mut().zip(others) {
        *value = change(f64::from(*value), f64::from(*other)) as f32;
    }
}
