//! `neap chat`: a conversation, line by line.

use crate::budgets::peak::PeakMeter;
use crate::failure::{Outcome, bad};
use crate::language::answer::{Show, Speed, answer};
use crate::language::args::{ModelArgs, SamplingArgs, SessionArgs};
use crate::language::{Limit, limited, open, session};
use crate::progress::note;
use crate::{cgroup, interrupt, stdout};
use clap::Args;
use neap_chat::{Prompt, Reason, Runner};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, stdin};

#[derive(Args)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Whether the model thinks before it answers, where its template lets one choose
    #[arg(long, value_name = "on|off", value_parser = ["on", "off"])]
    think: Option<String>,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

pub fn run(args: &ChatArgs, quiet: bool) -> Outcome {
    interrupt::leave_to_child();
    limited(&args.model, |limit| here(args, limit, quiet))
}

fn here(args: &ChatArgs, limit: Limit, quiet: bool) -> Outcome {
    let own = limit.own_cgroup.then(|| cgroup::find().ok()).flatten();
    let peak = PeakMeter::new(own);
    let mut runner = open(&args.model, limit, 1)?;
    if !runner.has_template() {
        return Err(bad(
            "the model has no template for chats: neap generate continues texts with it",
        ));
    }
    let messages = began(args, &mut runner, quiet)?;
    let ended = talk(args, &mut runner, messages, quiet);
    if let (Ok(speed), false) = (&ended, quiet) {
        note(&speed.text(peak.overall().bytes));
    }
    ended.map(|_| ())
}

fn message(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// The messages of a conversation that goes on, or what one begins with.
fn began(args: &ChatArgs, runner: &mut Runner, quiet: bool) -> Outcome<Vec<Value>> {
    let system = args.system.as_deref().map(|text| message("system", text));
    let file = args.session.save_session.as_deref();
    let loaded = file.map(|file| session::load(runner, file));
    let kept = loaded.transpose()?.flatten().unwrap_or_default();
    let before = kept["messages"].as_array().cloned().unwrap_or_default();
    let Some(first) = before.first() else {
        return Ok(system.into_iter().collect());
    };
    if system.is_some_and(|system| system != *first) {
        return Err(bad(
            "--system: the saved conversation began otherwise, and goes on without this option",
        ));
    }
    if !quiet {
        note(&format!(
            "a conversation of {} messages goes on",
            before.len()
        ));
    }
    Ok(before)
}

/// Until there are no more lines. What is kept is kept after each answer, however the conversation ends.
fn talk(
    args: &ChatArgs,
    runner: &mut Runner,
    mut messages: Vec<Value>,
    quiet: bool,
) -> Outcome<Speed> {
    let on_terminal = stdin().is_terminal() && std::io::stdout().is_terminal();
    if on_terminal && !quiet {
        note("Ctrl-C stops an answer, /exit ends the conversation");
    }
    let mut speed = Speed::default();
    let mut line = String::new();
    loop {
        if on_terminal {
            stdout::print("> ")?;
        }
        line.clear();
        let read = stdin().lock().read_line(&mut line);
        if read.map_err(|e| bad(format!("cannot read what is said: {e}")))? == 0
            || line.trim() == "/exit"
        {
            return Ok(speed);
        }
        if line.trim().is_empty() {
            continue;
        }
        messages.push(message("user", line.trim()));
        let request = args.sampling.request(Prompt::Chat {
            messages: messages.clone(),
            tools: Vec::new(),
            thinking: args.think.as_deref().map(|think| think == "on"),
        });
        let _deferred = interrupt::defer();
        let mut show = Show::new(on_terminal);
        let answered = answer(runner, request, &mut show)?;
        show.end_thought()?;
        stdout::print("\n")?;
        if answered.reason == Reason::Cancelled {
            match interrupt::noted() {
                Some(libc::SIGINT) => interrupt::forget(),
                _ => interrupt::check()?,
            }
        }
        speed.add(answered.speed);
        messages.push(message("assistant", &answered.text));
        if let Some(file) = &args.session.save_session {
            session::save(runner, file, json!({"messages": messages}))?;
        }
    }
}
