//! `neap imagine`: pictures of a text, with Stable Diffusion.
//!
//! ```text
//!   text ─► text encoders ─► noise, or a photo ─► VAE encoder ─► UNet, step by step ─► VAE decoder ─► PNG
//! ```
//! The networks take turns: one is open at a time, and has the whole budget. Whether each of them can run in it is known before the
//! first one runs.

mod denoise;
mod folder;
mod network;
mod picture;
mod report;
mod steps;
mod text;

use super::HAS_PACKED;
use crate::args::EngineArgs;
use crate::budgets::peak::PeakMeter;
use crate::cgroup::supervise::{self, Ended};
use crate::destination::Destination;
use crate::failure::{Failure, Outcome, bad};
use crate::meter::Meter;
use crate::printed::put_json;
use crate::progress::note;
use crate::{cgroup, interrupt};
use clap::Args;
use folder::Folder;
use neap_diffusion::{Kind, Sampler};
use neaptide::{Budget, Cache, OpenOptions, OwnProcess, memory};
use network::{Engine, Network};
use report::Report;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

#[derive(Args)]
pub struct ImagineArgs {
    /// A folder with Stable Diffusion 1 or SDXL in ONNX, as `optimum` exports it
    folder: PathBuf,
    /// What the picture shows
    #[arg(short, long, value_name = "TEXT")]
    prompt: String,
    /// What it should not show
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    negative: String,
    /// The picture to write; of several, out-1.png and so on
    #[arg(short, long, value_name = "FILE.png")]
    output: PathBuf,
    /// Steps from noise to a picture
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = crate::numbers::whole::<u16>(1..=1000))]
    steps: u16,
    /// How steps are taken: ddim, euler, euler-a, dpm++2m, lcm or pndm [default: as the folder says]
    #[arg(long, value_name = "NAME")]
    scheduler: Option<Kind>,
    /// How much more the picture should be like the text than without one; to 1 nothing is compared, and the rest is ignored [default: 7.5, for SDXL 5]
    #[arg(long, value_name = "X", value_parser = crate::numbers::from_zero)]
    guidance: Option<f64>,
    /// Width and height in pixels, multiples of 8 [default: what the model was trained with]
    #[arg(long, value_name = "WIDTHxHEIGHT")]
    size: Option<Size>,
    /// Seed of the noise, which is PyTorch's; of several pictures the first one's
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::numbers::any::<u32>)]
    seed: u32,
    /// So many pictures, with one seed after another
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::numbers::whole::<u16>(1..=1000))]
    images: u16,
    /// Begin with this photo instead of noise alone
    #[arg(long, value_name = "PHOTO")]
    image: Option<PathBuf>,
    /// How far the picture may be from the photo: from 0 to 1, which keeps nothing of it
    #[arg(long, value_name = "X", default_value_t = 0.8, requires = "image", value_parser = strength)]
    strength: f64,
    /// Memory that the whole process may take: 300MiB, auto or none
    ///
    /// 300M is 300MiB, and a number without a unit is bytes. auto is what can be spared here.
    #[arg(long, value_name = "SIZE", default_value = "none", value_parser = crate::cgroup::limits::budget)]
    memory_budget: Budget,
    /// Let the kernel enforce the budget, as the limit of a memory cgroup
    #[arg(long)]
    enforce: bool,
    /// Write a report instead of the last line; '-' is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep packed models here instead of beside the model or in the user's cache folder
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Of a picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    width: usize,
    height: usize,
}

/// No picture that fits in a machine's memory is larger.
const MOST_SIDE: usize = 8192;

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let sides = text.split_once('x').and_then(|(width, height)| {
            let width = width.parse().ok()?;
            Some((width, height.parse().ok()?))
        });
        let (width, height) = sides.ok_or("write WIDTHxHEIGHT, such as 512x512")?;
        for side in [width, height] {
            if !(8..=MOST_SIDE).contains(&side) || !side.is_multiple_of(8) {
                return Err(format!("{side} is no multiple of 8 from 8 to {MOST_SIDE}"));
            }
        }
        Ok(Size { width, height })
    }
}

fn strength(text: &str) -> Result<f64, String> {
    let strength = crate::numbers::from_zero(text)?;
    (strength <= 1.0)
        .then_some(strength)
        .ok_or_else(|| format!("'{text}' is no number from 0 to 1"))
}

pub fn run(args: &ImagineArgs, quiet: bool) -> Outcome {
    let budget = match args.memory_budget {
        Budget::Percent(_) => {
            return Err(bad(format!(
                "--memory-budget {}: write a size, as several networks take turns",
                args.memory_budget
            )));
        }
        budget => budget,
    };
    if args.engine.keep_activations {
        return Err(bad("--keep-activations is for `neap run`"));
    }
    let own_limit = supervise::own_limit_bytes().filter(|_| args.enforce);
    if !args.enforce || own_limit.is_some() {
        return here(
            args,
            own_limit.map_or(budget, Budget::Bytes),
            own_limit.is_some(),
            quiet,
        );
    }
    let Budget::Bytes(limit) = budget else {
        return Err(bad("--enforce needs a limit: give --memory-budget SIZE"));
    };
    match supervise::run_again(limit)? {
        Ended::Well => Ok(()),
        Ended::OutOfMemory => {
            // A budget so small that not even the refusal fits into it, or a defect.
            Job::new(args, budget, false)?.check(quiet)?;
            Err(Failure::Internal(supervise::out_of_memory(limit)))
        }
    }
}

/// Everything that is known before a network is open.
struct Job<'a> {
    args: &'a ImagineArgs,
    folder: Folder,
    size: Size,
    engine: Engine,
    sampler: Sampler,
    guidance: f64,
    kind: Kind,
    outputs: Vec<PathBuf>,
}

/// What is known after all networks were planned.
struct Ready {
    was_packed: bool,
    /// Pictures that the UNet sees together.
    at_once: usize,
}

fn here(args: &ImagineArgs, budget: Budget, own_cgroup: bool, quiet: bool) -> Outcome {
    let (began, meter) = (Instant::now(), Meter::start());
    let own = own_cgroup.then(|| cgroup::find().ok()).flatten();
    let peak = PeakMeter::new(own);
    let job = Job::new(args, budget, own_cgroup)?;
    let Ready {
        was_packed,
        at_once,
    } = job.check(quiet)?;
    // What packing leaves of the process would be counted with the run, and not in the next one.
    if own_cgroup && was_packed && std::env::var_os(HAS_PACKED).is_none() {
        drop(job);
        let error = super::run::begin_anew(&[(HAS_PACKED, "1")]);
        return Err(bad(format!("the run cannot begin anew: {error}")));
    }
    let mut networks = Vec::new();
    let _deferred = interrupt::defer();
    let (texts, reports) = job.texts(quiet)?;
    networks.extend(reports);
    let mut latents = match &args.image {
        None => job.noise(),
        Some(photo) => {
            let (latents, report) = job.of_photo(photo)?;
            networks.push(report);
            latents
        }
    };
    networks.extend(job.denoise(&texts, &mut latents, at_once, quiet)?);
    drop(texts);
    let (mut pictures, decoded) = job.pictures(&latents)?;
    networks.push(decoded);
    for (path, pixels) in job.outputs.iter().zip(pictures.drain(..)) {
        picture::write(path, job.size, &pixels)?;
    }
    interrupt::check()?;
    let peak = peak.overall();
    let report = Report::new(&job, networks, peak, began.elapsed(), meter.stop());
    match &args.json {
        Some(path) => put_json(Some(path), &report),
        None if quiet => Ok(()),
        None => {
            note(&report.text());
            Ok(())
        }
    }
}

impl Job<'_> {
    fn new(args: &ImagineArgs, budget: Budget, own_cgroup: bool) -> Outcome<Job<'_>> {
        let folder = Folder::open(&args.folder, args.image.is_some())?;
        let size = match args.size {
            Some(size) => size,
            None => folder.usual_size()?,
        };
        if [size.width, size.height]
            .iter()
            .any(|side| !side.is_multiple_of(folder.scale))
        {
            return Err(bad(format!(
                "--size {}x{}: this model makes pictures whose sides are multiples of {}",
                size.width, size.height, folder.scale
            )));
        }
        let settings = folder.scheduler()?;
        let of_folder = |e| bad(format!("{}: {e}", folder.scheduler_path().display()));
        let kind = match args.scheduler {
            Some(kind) => kind,
            None => settings.kind().map_err(of_folder)?,
        };
        let mut sampler = Sampler::new(kind, &settings, args.steps.into()).map_err(bad)?;
        if args.image.is_some() {
            sampler = sampler.with_strength(args.strength).map_err(bad)?;
        }
        let outputs = output_names(&args.output, args.images);
        for output in &outputs {
            Destination::of(output)?;
            let into = output.parent().filter(|p| !p.as_os_str().is_empty());
            if let Some(into) = into.filter(|into| !into.is_dir()) {
                return Err(bad(format!(
                    "cannot write {}: {} is no folder",
                    output.display(),
                    into.display()
                )));
            }
        }
        // What `diffusers` takes.
        let usual_guidance = if folder.is_xl { 5.0 } else { 7.5 };
        let host = OwnProcess { own_cgroup };
        Ok(Job {
            args,
            size,
            guidance: args.guidance.unwrap_or(usual_guidance),
            kind,
            sampler,
            outputs,
            folder,
            engine: Engine {
                open: OpenOptions {
                    cache: args.cache_dir.clone().map_or(Cache::Auto, Cache::Folder),
                    host: Arc::new(host),
                    ..OpenOptions::default()
                },
                run: args.engine.options(budget),
                own_cgroup,
            },
        })
    }

    /// Whether each network can run within the budget; packs those that were not.
    fn check(&self, quiet: bool) -> Outcome<Ready> {
        let was_packed = self.check_for(1, quiet)?;
        let at_once = self.at_once()?;
        if self.args.images > 1 {
            // Plans that were tried leave more of the program in memory.
            self.check_for(at_once, quiet)?;
        }
        Ok(Ready {
            was_packed,
            at_once,
        })
    }

    /// The same where the UNet sees so many pictures. Says whether one was packed.
    fn check_for(&self, at_once: usize, quiet: bool) -> Outcome<bool> {
        let mut was_packed = false;
        let mut refusals: Vec<neaptide::Error> = Vec::new();
        for network in self.networks(at_once) {
            let checked = self.engine.check(&network?, quiet);
            let (refused, packed) = checked.map_err(|failure| self.for_this_size(failure))?;
            was_packed |= packed;
            refusals.extend(refused);
            memory::trim_heap();
        }
        // Of several that do not fit, the one that needs most names a budget that is enough for all.
        let needed = |error: &neaptide::Error| match error {
            neaptide::Error::Infeasible { smallest_bytes, .. } => *smallest_bytes,
            _ => u64::MAX,
        };
        match refusals.into_iter().max_by_key(needed) {
            Some(refusal) => Err(refusal.into()),
            None => Ok(was_packed),
        }
    }

    /// For how many pictures the UNet can run together; it can for one.
    fn at_once(&self) -> Outcome<usize> {
        let mut fits = 1;
        let mut too_many = usize::from(self.args.images) + 1;
        // Without a budget, what can be spared here.
        let limit = cgroup::limits::automatic().ok();
        // All, if that is possible; else between the two.
        let mut tried = too_many - 1;
        while tried > fits {
            match self.engine.fits(&self.unet(tried)?, limit)? {
                true => fits = tried,
                false => too_many = tried,
            }
            memory::trim_heap();
            tried = fits.midpoint(too_many);
        }
        Ok(fits)
    }

    /// All networks, as they will be run.
    fn networks(&self, at_once: usize) -> impl Iterator<Item = Outcome<Network>> {
        let texts = self.folder.encoders().iter();
        let encoder = self.args.image.is_some().then(|| self.vae_encoder());
        texts
            .map(|encoder| self.text_encoder(encoder))
            .chain(encoder)
            .chain([self.unet(at_once), self.vae_decoder()])
    }

    /// A network that does not open may be one that cannot halve the sides.
    fn for_this_size(&self, failure: Failure) -> Failure {
        let (Size { width, height }, even) = (self.size, self.folder.even);
        match failure {
            Failure::BadInput(text)
                if !width.is_multiple_of(even) || !height.is_multiple_of(even) =>
            {
                bad(format!(
                    "--size {width}x{height}: give multiples of {even}, which the networks halve evenly; {text}"
                ))
            }
            failure => failure,
        }
    }

    fn is_guided(&self) -> bool {
        self.guidance > 1.0
    }

    /// Height and width of latents.
    fn latent_sides(&self) -> [usize; 2] {
        [self.size.height, self.size.width].map(|side| side / self.folder.scale)
    }

    fn latent_len(&self) -> usize {
        self.folder.latent_channels * self.latent_sides().iter().product::<usize>()
    }

    fn seeds(&self) -> impl Iterator<Item = u64> {
        let first = u64::from(self.args.seed);
        (0..u64::from(self.args.images)).map(move |i| first + i)
    }
}

/// `out.png`, or `out-1.png` and so on.
fn output_names(output: &Path, images: u16) -> Vec<PathBuf> {
    if images == 1 {
        return vec![output.into()];
    }
    let stem = output.file_stem().unwrap_or_default();
    let numbered = (1..=images).map(|number| {
        let mut name = stem.to_os_string();
        name.push(format!("-{number}"));
        if let Some(extension) = output.extension() {
            name.push(".");
            name.push(extension);
        }
        output.with_file_name(name)
    });
    numbered.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        let size: Size = "512x768".parse().unwrap();
        assert_eq!((size.width, size.height), (512, 768));
        for wrong in ["512", "x", "512x", "0x8", "511x512", "8x9999999", "-8x8"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn several_pictures_are_numbered() {
        let names = output_names(Path::new("a/out.png"), 2);
        assert_eq!(names, [Path::new("a/out-1.png"), Path::new("a/out-2.png")]);
        assert_eq!(output_names(Path::new("out"), 1), [Path::new("out")]);
    }
}
