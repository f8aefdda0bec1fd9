//! `neap generate`: goes on with a text, or answers many of a file.

mod batch;

use crate::budgets::peak::PeakMeter;
use crate::failure::{Outcome, bad};
use crate::language::answer::{Report, Show, answer};
use crate::language::args::{ModelArgs, SamplingArgs, SessionArgs};
use crate::language::{Limit, limited, open, session};
use crate::progress::note;
use crate::{atomic, cgroup, interrupt, stdout};
use clap::Args;
use neap_chat::Prompt;
use serde_json::json;
use std::io::{IsTerminal, Read, Write, stdin};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text to go on with [default: that of --file, or of standard input]
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// File with the text to go on with
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// The text is what somebody says to the model, in the form that the model's template gives it
    #[arg(long)]
    chat: bool,
    /// Many texts: a JSON object a line with "prompt" or "messages", and one a line with "text" comes out, in the same order
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "file", "chat", "save_session"])]
    jsonl: Option<PathBuf>,
    /// With --jsonl, most texts at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = crate::numbers::whole::<u8>(1..=64))]
    parallel: u8,
    /// Go on where the model would end its answer
    #[arg(long)]
    ignore_end: bool,
    /// Write what it took as a report instead of the last line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Longest text that is read: no context holds more.
const MOST_TEXT_BYTES: u64 = 16 << 20;

pub fn run(args: &GenerateArgs, quiet: bool) -> Outcome {
    limited(&args.model, |limit| here(args, limit, quiet))
}

fn here(args: &GenerateArgs, limit: Limit, quiet: bool) -> Outcome {
    let own = limit.own_cgroup.then(|| cgroup::find().ok()).flatten();
    let peak = PeakMeter::new(own);
    let _deferred = interrupt::defer();
    let text = args.jsonl.is_none().then(|| text(args)).transpose()?;
    let at_once = args.jsonl.as_ref().map_or(1, |_| args.parallel.into());
    let mut runner = open(&args.model, limit, at_once)?;
    let (ledger, predicted_ns) = (runner.ledger(), runner.predicted_ns());
    let speed = match (&args.jsonl, text) {
        (Some(file), _) => batch::all(&mut runner, file, &args.sampling)?,
        (None, text) => {
            let text = text.unwrap_or_default();
            let prompt = match args.chat {
                false => Prompt::Text(text),
                true => Prompt::Chat {
                    messages: vec![json!({"role": "user", "content": text})],
                    tools: Vec::new(),
                    thinking: None,
                },
            };
            let file = args.session.save_session.as_deref();
            // What else the file keeps, such as a conversation, goes on to be there.
            let kept = file.map(|file| session::load(&mut runner, file));
            let kept = kept.transpose()?.flatten().unwrap_or_default();
            let mut show = Show::new(std::io::stdout().is_terminal());
            let mut request = args.sampling.request(prompt);
            request.ignore_end = args.ignore_end;
            let answered = answer(&mut runner, request, &mut show)?;
            show.end_thought()?;
            stdout::print("\n")?;
            if let Some(file) = file {
                session::save(&mut runner, file, kept)?;
            }
            answered.speed
        }
    };
    interrupt::check()?;
    let peak_bytes = peak.overall().bytes;
    match &args.json {
        Some(path) => {
            let report = speed.report(peak_bytes, ledger, predicted_ns);
            write(path, &report)
        }
        None if quiet => Ok(()),
        None => {
            note(&speed.text(peak_bytes));
            Ok(())
        }
    }
}

fn write(path: &Path, report: &Report) -> Outcome {
    let text = stdout::json(report)?;
    atomic::write(path, |file| writeln!(file, "{text}"))
}

fn text(args: &GenerateArgs) -> Outcome<String> {
    if let Some(text) = &args.prompt {
        return Ok(text.clone());
    }
    let mut text = String::new();
    let (read, name) = match &args.file {
        Some(path) => {
            let file = std::fs::File::open(path);
            let read = file.and_then(|file| file.take(MOST_TEXT_BYTES).read_to_string(&mut text));
            (read, path.display().to_string())
        }
        None => (
            stdin()
                .lock()
                .take(MOST_TEXT_BYTES)
                .read_to_string(&mut text),
            "standard input".into(),
        ),
    };
    read.map_err(|e| bad(format!("cannot read {name}: {e}")))?;
    Ok(text)
}
