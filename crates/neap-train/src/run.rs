//! The loop over epochs.
//!
//! ```text
//! open to train ─ take up the checkpoint ─ batches ─ checkpoint ─┐
//!      ▲                                                         ▼
//!      └── next epoch ◄── curves, log ◄── validate ◄── open to evaluate, with the checkpoint's parameters
//! ```
//! Training and validating are never open at once: each has all of the memory. What the next step depends on goes through
//! the checkpoint, so a training that was killed and taken up is the same as one that was not.

use crate::checkpoint::{self, Best, Progress};
use crate::data::{Augment, Batch, DataSet, Loader, Samples};
use crate::engine::Engine;
use crate::error::{Result, TrainError, bad, unwritable};
use crate::export::{self, Names};
use crate::history::{Epoch, Point};
use crate::log::Log;
use crate::metrics::{Tally, judge};
use crate::options::TrainOptions;
use crate::page;
use crate::places;
use crate::random::{Draw, Purpose};
use crate::recipe::Recipe;
use crate::settings::{self, RATE, Settings};
use crate::tensors::Tensors;
use crate::watch::{EpochLine, Event, PlanLine, StepFigures, Watch};
use neap_autodiff::Schedule;
use neap_ir::{DType, Literal};
use neaptide::{CostSource, MicroBatch, Session, TrainCosts, Trainer};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// What a training came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    pub steps: u64,
    /// Of the epoch whose weights were written.
    pub epoch: Epoch,
}

/// Trains a model, and writes what it has learned.
///
/// # Errors
/// [`TrainError`]; what was learned until the last checkpoint is in there, and the line says so.
pub fn train(
    engine: &Engine,
    data: &DataSet,
    options: &TrainOptions,
    watch: &mut dyn Watch,
) -> Result<Summary> {
    let batch = engine.recipe.batch;
    let batches = (data.train.count() / batch) as u64;
    if batches == 0 {
        return Err(bad(format!(
            "{} samples are less than a batch of {batch}",
            data.train.count(),
        )));
    }
    if options.epochs == 0 {
        return Err(bad("no epochs are asked for"));
    }
    places::check(options)?;
    let mut engine = engine.resolved()?;
    engine.recipe.metadata = metadata(&engine.recipe, data);
    let engine = &engine;
    let recipe = &engine.recipe;
    export::check(recipe)?;
    let mut options = options.clone();
    let mut own = settings::of(recipe, data, &options)?;
    if let MicroBatch::Samples(samples) = engine.micro_batch {
        own.insert("--micro-batch".into(), samples.to_string());
    }
    let (progress, is_resumed) = begin(&mut options, own, batches, watch)?;
    let options = &options;
    let from = is_resumed.then_some(progress.step);
    let log = options.log.as_deref();
    let log = log
        .map(|path| Log::open(path, progress.log_bytes))
        .transpose()?;
    watch.event(&Event::Begun {
        samples: data.train.count(),
        validation: data.validation.as_ref().map_or(0, |v| v.count()),
        steps_per_epoch: batches,
        epochs: options.epochs,
        from,
    });
    let mut run = Run {
        recipe,
        engine: engine.clone(),
        data,
        options,
        watch,
        schedule: options.schedule(batches * options.epochs),
        batches,
        progress,
        saved: from,
        log,
        has_told_plan: false,
        page_failure: None,
    };
    run.epochs().map_err(|error| run.with_checkpoint(error))
}

/// What the trained model says of its inputs and classes.
fn metadata(recipe: &Recipe, data: &DataSet) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    if let Some(picture) = &data.picture {
        entries.push((neap_picture::Recipe::KEY.to_string(), picture.text()));
    }
    if !data.classes.is_empty() {
        let text = neap_picture::classes_text(&data.classes);
        entries.push((neap_picture::CLASSES_KEY.to_string(), text));
    } else if recipe.start.has_new_classes {
        // Those of the old layer are wrong now.
        let keys = neap_picture::KEYS_OF_CLASSES.iter();
        entries.extend(keys.map(|key| ((*key).to_string(), String::new())));
    }
    entries
}

/// Where to begin, and whether that is a checkpoint. A rate that nobody gave becomes the checkpoint's.
fn begin(
    options: &mut TrainOptions,
    mut settings: Settings,
    batches: u64,
    watch: &mut dyn Watch,
) -> Result<(Progress, bool)> {
    let path = &options.checkpoint;
    if options.overwrite || !path.exists() {
        let progress = Progress {
            settings,
            ..Progress::default()
        };
        return Ok((progress, false));
    }
    let mut progress = checkpoint::progress(path)?;
    let (shown, done) = (path.display(), progress.step);
    if !options.resume {
        return Err(bad(format!(
            "{shown} holds a training of {done} steps: --resume goes on with it, --overwrite begins anew"
        )));
    }
    let kept = progress
        .settings
        .get(RATE)
        .and_then(|rate| rate.parse().ok());
    if let (false, Some(rate)) = (options.rate_is_given, kept) {
        options.rate = rate;
        settings.insert(RATE.into(), rate.to_string());
    }
    if let Some(difference) = settings::difference(&progress.settings, &settings) {
        return Err(bad(format!(
            "{shown} is of another training: {difference}; --overwrite begins anew, and a trained .onnx can be trained on"
        )));
    }
    let begun = progress.epochs + u64::from(progress.batches > 0);
    if options.epochs < begun {
        let (asked, whole) = (options.epochs, progress.batches == batches);
        let state = if whole { "after" } else { "in" };
        return Err(bad(format!(
            "{shown} is {state} epoch {begun}, --epochs {asked} asks for fewer: give --epochs {begun} or more"
        )));
    }
    for change in settings::changes(&progress.settings, &settings) {
        watch.event(&Event::Remark { text: &change });
    }
    progress.settings = settings;
    Ok((progress, true))
}

struct Run<'a> {
    recipe: &'a Recipe,
    engine: Engine,
    data: &'a DataSet,
    options: &'a TrainOptions,
    watch: &'a mut dyn Watch,
    schedule: Schedule,
    /// Of an epoch.
    batches: u64,
    progress: Progress,
    /// Step of the checkpoint that there is.
    saved: Option<u64>,
    log: Option<Log>,
    /// Whether it was said how steps are planned.
    has_told_plan: bool,
    /// Why the page could not be written: what was learned is worth more, and comes first.
    page_failure: Option<TrainError>,
}

/// How fast an epoch went, as far as this process did it.
struct Pace {
    since: Instant,
    samples: u64,
}

impl Pace {
    fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.since.elapsed().as_secs_f64().max(1e-9)
    }
}

impl Run<'_> {
    fn epochs(&mut self) -> Result<Summary> {
        let mut open: Option<Trainer> = None;
        while self.progress.epochs < self.options.epochs {
            let mut trainer = match open.take() {
                Some(trainer) => trainer,
                None => self.trainer()?,
            };
            let pace = self.train_epoch(&mut trainer)?;
            self.save(&mut trainer)?;
            let validation = match &self.data.validation {
                Some(samples) => {
                    // Its memory is for the validation.
                    drop(trainer);
                    self.validate(samples)?
                }
                None => {
                    open = Some(trainer);
                    Tally::default()
                }
            };
            if self.close_epoch(validation, &pace)? {
                break;
            }
        }
        drop(open);
        self.finish()
    }

    /// With the states of the checkpoint, if there is one.
    fn trainer(&mut self) -> Result<Trainer> {
        let mut trainer = self.engine.trainer()?;
        // They are measured once.
        self.engine.costs = TrainCosts::Known(trainer.costs().clone());
        if self.saved.is_some() {
            checkpoint::restore(&self.options.checkpoint, &mut trainer)?;
        }
        if !self.has_told_plan {
            self.has_told_plan = true;
            self.tell_plan(&trainer)?;
        }
        Ok(trainer)
    }

    fn tell_plan(&mut self, trainer: &Trainer) -> Result<()> {
        let summary = trainer.summary();
        let line = PlanLine {
            strategy: summary.strategy.name(),
            micro_batches: trainer.parts(),
            planned_bytes: trainer.high_water_bytes(),
            stored_bytes: summary.stored_bytes,
            loaded_bytes: summary.loaded_bytes,
            recomputed_flops: summary.recomputed_flops,
            predicted_s: (summary.cost_source == CostSource::Measured)
                .then_some(summary.predicted_ns as f64 / 1e9),
            is_proven: summary.is_proven,
        };
        self.watch.event(&Event::Planned(&line));
        match &mut self.log {
            Some(log) => log.line(&line),
            None => Ok(()),
        }
    }

    /// What is left of the epoch.
    fn train_epoch(&mut self, trainer: &mut Trainer) -> Result<Pace> {
        let epoch = self.progress.epochs + 1;
        let seed = self.options.seed;
        let order = Draw::new(Purpose::Order, seed, epoch, 0).permutation(self.data.train.count());
        let mut loader = Loader::start(
            self.data.train.clone(),
            &self.recipe.sample,
            self.recipe.batch,
            order,
            self.progress.batches as usize..self.batches as usize,
            self.options.augments.then_some(Augment { seed, epoch }),
        )?;
        let mut pace = Pace {
            since: Instant::now(),
            samples: 0,
        };
        while let Some(batch) = loader.next()? {
            self.step(trainer, &batch, &mut pace)?;
            loader.done(batch);
            let every = self.options.checkpoint_every;
            let is_due = every.is_some_and(|n| self.progress.step.is_multiple_of(n.max(1)));
            // The end of the epoch writes one anyway.
            if is_due && self.progress.batches < self.batches {
                self.save(trainer)?;
            }
            if self.watch.should_stop() {
                self.save(trainer)?;
                return Err(TrainError::Interrupted);
            }
        }
        Ok(pace)
    }

    fn step(&mut self, trainer: &mut Trainer, batch: &Batch, pace: &mut Pace) -> Result<()> {
        let progress = &mut self.progress;
        let number = progress.step + 1;
        let rate = self.schedule.at(number);
        let (input, target) = (batch.input.bytes(), batch.target.bytes());
        let loss = trainer.step(&[input], target, rate)?;
        let epoch = progress.epochs + 1;
        if !loss.is_finite() {
            let why = match is_finite(&batch.input) && is_finite(&batch.target) {
                true => "a lower --lr or --clip-norm may help",
                false => "the data of this batch hold numbers that are not finite",
            };
            return Err(TrainError::Diverged(format!(
                "the loss is {loss} at step {number}, in epoch {epoch}; {why}"
            )));
        }
        let target = &batch.target;
        let judgement = judge(
            &self.recipe.loss,
            trainer.result(),
            &self.recipe.result,
            target,
            batch.count,
        );
        progress.step = number;
        progress.batches += 1;
        progress.tally.add_mean(loss, judgement.places);
        progress.tally.add_accuracy(&judgement);
        pace.samples += batch.count as u64;
        let accuracy = |right: u64, of: u64| (of > 0).then(|| right as f64 / of as f64);
        let figures = StepFigures {
            step: number,
            epoch,
            epoch_loss: progress.tally.loss().unwrap_or(loss),
            epoch_accuracy: progress.tally.accuracy(),
            loss,
            accuracy: accuracy(judgement.right, judgement.judged),
            rate,
            samples_per_second: pace.samples_per_second(),
            peak_bytes: self.watch.peak_bytes(),
        };
        progress.history.add(Point {
            step: number,
            loss: loss as f32,
            accuracy: figures.accuracy.map(|a| a as f32),
        });
        self.watch.event(&Event::Step(&figures));
        if let Some(log) = &mut self.log
            && number.is_multiple_of(self.options.log_every.max(1))
        {
            log.line(&figures)?;
        }
        Ok(())
    }

    fn save(&mut self, trainer: &mut Trainer) -> Result<()> {
        if self.saved == Some(self.progress.step) {
            return Ok(());
        }
        if let Some(log) = &mut self.log {
            self.progress.log_bytes = log.sync()?;
        }
        let path = &self.options.checkpoint;
        checkpoint::write(path, trainer, &self.progress)?;
        self.saved = Some(self.progress.step);
        Ok(())
    }

    /// Of the checkpoint's parameters: the model is written with them, and run as any model is.
    fn validate(&mut self, samples: &Arc<dyn Samples>) -> Result<Tally> {
        let count = samples.count();
        self.watch.event(&Event::Validating { samples: count });
        let folder = Folder::create(self.beside("validation"))?;
        let model = folder.0.join("model.onnx");
        let weights = Tensors::open(&self.options.checkpoint)?;
        export::write_onnx(self.recipe, &weights, &model)?;
        let engine = Engine {
            folder: folder.0.clone(),
            ..self.engine.clone()
        };
        self.evaluate(&mut engine.session(&model)?, samples)
    }

    fn evaluate(&mut self, session: &mut Session, samples: &Arc<dyn Samples>) -> Result<Tally> {
        let (recipe, count) = (self.recipe, samples.count());
        let mut loader = Loader::start(
            samples.clone(),
            &recipe.sample,
            recipe.batch,
            (0..count as u32).collect(),
            0..count.div_ceil(recipe.batch),
            None,
        )?;
        let mut outputs: Vec<Vec<u8>> = session
            .outputs()
            .iter()
            .map(|o| vec![0; o.len_bytes()])
            .collect();
        if session.outputs()[0].ty.dtype != DType::F32 {
            return Err(TrainError::Defect("results are no float32".into()));
        }
        let mut tally = Tally::default();
        while let Some(batch) = loader.next()? {
            let mut places: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            session.run(&[batch.input.bytes()], &mut places)?;
            let (ty, target) = (&recipe.result, &batch.target);
            tally.add(&judge(&recipe.loss, &outputs[0], ty, target, batch.count));
            loader.done(batch);
            if self.watch.should_stop() {
                // The checkpoint of this epoch is written.
                return Err(TrainError::Interrupted);
            }
        }
        Ok(tally)
    }

    /// Notes the figures of the epoch that the checkpoint ends; whether it was the last because none got better.
    fn close_epoch(&mut self, validation: Tally, pace: &Pace) -> Result<bool> {
        let progress = &mut self.progress;
        progress.epochs += 1;
        progress.batches = 0;
        let trained = std::mem::take(&mut progress.tally);
        let narrow = |v: Option<f64>| v.map(|v| v as f32);
        let epoch = Epoch {
            epoch: progress.epochs,
            step: progress.step,
            train_loss: trained.loss().unwrap_or(f64::NAN) as f32,
            train_accuracy: narrow(trained.accuracy()),
            validation_loss: narrow(validation.loss()),
            validation_accuracy: narrow(validation.accuracy()),
        };
        progress.history.epochs.push(epoch);
        let best = progress.best.map(|b| f64::from_bits(b.loss_bits));
        let is_best = validation
            .loss()
            .is_some_and(|loss| best.is_none_or(|best| loss < best));
        if let (true, Some(loss)) = (is_best, validation.loss()) {
            progress.best = Some(Best {
                epoch: epoch.epoch,
                loss_bits: loss.to_bits(),
            });
            if self.options.keep_best {
                let weights = Tensors::open(&self.options.checkpoint)?;
                let best = self.beside("best");
                export::write_safetensors(self.recipe, &weights, &best, Names::Own)?;
            }
        }
        let peak_bytes = self.watch.peak_bytes();
        let samples_per_second = pace.samples_per_second();
        if let Some(log) = &mut self.log {
            log.line(&EpochLine {
                epoch: &epoch,
                samples_per_second,
                peak_bytes,
            })?;
        }
        if let Err(failure) = self.write_page() {
            self.page_failure = Some(failure);
        }
        self.watch.event(&Event::Epoch {
            epoch: &epoch,
            samples_per_second,
            peak_bytes,
            is_best,
        });
        let (Some(patience), Some(best)) = (self.options.patience, self.progress.best) else {
            return Ok(false);
        };
        let is_over = epoch.epoch >= best.epoch + patience && epoch.epoch < self.options.epochs;
        if is_over {
            let best_epoch = best.epoch;
            self.watch.event(&Event::StoppedEarly { best_epoch });
        }
        Ok(is_over)
    }

    fn write_page(&self) -> Result<()> {
        let Some(path) = &self.options.page else {
            return Ok(());
        };
        let name = |path: &Path| path.file_name().unwrap_or_default().display().to_string();
        let facts = [
            (
                "parameters trained",
                self.recipe.trained_elements.to_string(),
            ),
            ("samples", self.data.train.count().to_string()),
            ("batch", self.recipe.batch.to_string()),
            ("learning rate", self.options.rate.to_string()),
            ("seed", self.options.seed.to_string()),
        ];
        let facts = facts.map(|(name, value)| (name.to_string(), value));
        let title = format!("Training of {}", name(&self.recipe.start.given));
        page::write(path, &title, &facts, &self.progress.history)
    }

    /// A file or folder with the checkpoint's name and one more ending: `best` are the weights of the best epoch.
    fn beside(&self, ending: &str) -> PathBuf {
        let checkpoint = &self.options.checkpoint;
        let mut name = checkpoint.file_name().unwrap_or_default().to_os_string();
        name.push(".");
        name.push(ending);
        checkpoint.with_file_name(name)
    }

    /// Writes what was learned.
    fn finish(&mut self) -> Result<Summary> {
        let epochs = &self.progress.history.epochs;
        let last = epochs.last().copied();
        let mut kept = last.ok_or_else(|| TrainError::Defect("no epoch was trained".into()))?;
        let mut from = self.options.checkpoint.clone();
        if let (true, Some(best)) = (self.options.keep_best, self.progress.best) {
            from = self.beside("best");
            let found = epochs.iter().find(|e| e.epoch == best.epoch);
            kept = found.copied().unwrap_or(kept);
        }
        let weights = Tensors::open(&from)?;
        let output = &self.options.output;
        export::write_onnx(self.recipe, &weights, output)?;
        self.watch.event(&Event::Written { path: output });
        let path = output.with_extension("safetensors");
        export::write_safetensors(self.recipe, &weights, &path, Names::Usual)?;
        self.watch.event(&Event::Written { path: &path });
        if let Some(failure) = self.page_failure.take() {
            let output = output.display();
            return Err(bad(format!("{failure}; {output} has what was learned")));
        }
        Ok(Summary {
            steps: self.progress.step,
            epoch: kept,
        })
    }

    /// An error that also says where the training can be taken up.
    fn with_checkpoint(&self, error: TrainError) -> TrainError {
        let Some(step) = self.saved else {
            return error;
        };
        let path = self.options.checkpoint.display();
        let say =
            |text: String| format!("{text}; the last good checkpoint is {path}, of step {step}");
        match error {
            TrainError::BadInput(text) => TrainError::BadInput(say(text)),
            TrainError::Diverged(text) => TrainError::Diverged(say(text)),
            TrainError::Infeasible(text) => TrainError::Infeasible(text),
            TrainError::Defect(text) => TrainError::Defect(say(text)),
            TrainError::Interrupted => TrainError::Interrupted,
            TrainError::Unbound { text, need } => TrainError::Unbound { text, need },
        }
    }
}

/// Whether all numbers are finite; integers are.
fn is_finite(values: &Literal) -> bool {
    values
        .as_f32()
        .is_none_or(|values| values.iter().all(|v| v.is_finite()))
}

/// A folder that goes when this is dropped, with all that is in it.
struct Folder(PathBuf);

impl Folder {
    /// Empty, whatever a killed process left there.
    fn create(path: PathBuf) -> Result<Folder> {
        if path.exists() {
            fs::remove_dir_all(&path).map_err(|e| unwritable(&path, &e))?;
        }
        fs::create_dir(&path).map_err(|e| unwritable(&path, &e))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The next validation removes what is left.
        let _ = fs::remove_dir_all(&self.0);
    }
}
