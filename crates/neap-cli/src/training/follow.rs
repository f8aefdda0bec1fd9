//! What is shown while a model is trained: a bar on a terminal, a line for each epoch everywhere.

use crate::interrupt;
use crate::progress::note;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use neap_train::{Epoch, Event, PlanLine, StepFigures, Watch};
use neaptide::{Bytes, memory};
use std::io::IsTerminal;

pub struct Follower {
    quiet: bool,
    /// Whether this process is alone in its cgroup, whose count is then the process's.
    own_cgroup: bool,
    bar: Option<ProgressBar>,
    steps_per_epoch: u64,
    epochs: u64,
}

impl Follower {
    pub fn new(quiet: bool, own_cgroup: bool) -> Follower {
        Follower {
            quiet,
            own_cgroup,
            bar: None,
            steps_per_epoch: 0,
            epochs: 0,
        }
    }

    fn step(&mut self, figures: &StepFigures) {
        let (epoch, epochs) = (figures.epoch, self.epochs);
        if self.bar.is_none() && std::io::stderr().is_terminal() {
            let target = ProgressDrawTarget::stderr_with_hz(10);
            let bar = ProgressBar::with_draw_target(Some(self.steps_per_epoch), target);
            let template = "{prefix} {wide_bar} {pos} of {len}, {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_prefix(format!("epoch {epoch} of {epochs}"));
            bar.set_position((figures.step - 1) % self.steps_per_epoch + 1);
            bar.set_message(format!(
                "loss {:.4}{}, {}/s, {}",
                figures.epoch_loss,
                share(figures.epoch_accuracy),
                rounded(figures.samples_per_second),
                Bytes(figures.peak_bytes)
            ));
        }
    }

    fn epoch(&mut self, epoch: &Epoch, samples_per_second: f64, peak_bytes: u64) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let validation = epoch.validation_loss.map_or(String::new(), |loss| {
            let accuracy = epoch.validation_accuracy.map(f64::from);
            format!("; validation: loss {loss:.4}{}", share(accuracy))
        });
        note(&format!(
            "epoch {} of {}: loss {:.4}{}{validation}; {} samples/s, peak {}",
            epoch.epoch,
            self.epochs,
            epoch.train_loss,
            share(epoch.train_accuracy.map(f64::from)),
            rounded(samples_per_second),
            Bytes(peak_bytes)
        ));
    }
}

/// Which strategy, in how much memory, and what it costs.
fn planned(line: &PlanLine) -> String {
    let mut text = format!("strategy {}: {}", line.strategy, Bytes(line.planned_bytes));
    if line.micro_batches > 1 {
        text.push_str(&format!(", {} micro-batches", line.micro_batches));
    }
    if line.stored_bytes + line.loaded_bytes > 0 {
        let (stored, loaded) = (Bytes(line.stored_bytes), Bytes(line.loaded_bytes));
        text.push_str(&format!("; a step stores {stored} and loads {loaded}"));
    }
    if line.recomputed_flops > 0 {
        let millions = line.recomputed_flops as f64 / 1e6;
        text.push_str(&format!("; it computes {millions:.1} MFLOP again"));
    }
    if let Some(seconds) = line.predicted_s {
        text.push_str(&format!("; predicted to take {seconds:.3} s"));
    }
    text
}

/// Three digits are enough for a speed.
fn rounded(speed: f64) -> String {
    match speed {
        s if s >= 100.0 => format!("{s:.0}"),
        s if s >= 10.0 => format!("{s:.1}"),
        s => format!("{s:.2}"),
    }
}

fn share(accuracy: Option<f64>) -> String {
    accuracy.map_or(String::new(), |a| format!(", accuracy {:.2} %", 100.0 * a))
}

impl Watch for Follower {
    fn event(&mut self, event: &Event) {
        if let Event::Begun {
            steps_per_epoch,
            epochs,
            ..
        } = *event
        {
            (self.steps_per_epoch, self.epochs) = (steps_per_epoch, epochs);
        }
        if self.quiet {
            return;
        }
        match *event {
            Event::Begun {
                samples,
                validation,
                steps_per_epoch,
                epochs,
                from,
            } => {
                let from = from.map_or(String::new(), |step| {
                    format!(", going on after step {step}")
                });
                note(&format!(
                    "{samples} samples to train on, {validation} to validate with: {epochs} epochs of {steps_per_epoch} steps{from}"
                ));
            }
            Event::Planned(line) => note(&planned(line)),
            Event::Step(figures) => self.step(figures),
            Event::Validating { .. } => {
                if let Some(bar) = &self.bar {
                    bar.set_message("validating");
                }
            }
            Event::Epoch {
                epoch,
                samples_per_second,
                peak_bytes,
                ..
            } => self.epoch(epoch, samples_per_second, peak_bytes),
            Event::StoppedEarly { best_epoch } => {
                note(&format!(
                    "validation got no better after epoch {best_epoch}"
                ));
            }
            Event::Remark { text } => note(text),
            Event::Written { .. } => {}
        }
    }

    fn should_stop(&self) -> bool {
        interrupt::noted().is_some()
    }

    fn peak_bytes(&self) -> u64 {
        memory::peak(self.own_cgroup).bytes
    }
}
