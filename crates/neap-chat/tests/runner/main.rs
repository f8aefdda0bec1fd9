//! Answers of a small seeded model: the same alone and in company, with drafts and without, from shared beginnings and from none.
#![forbid(unsafe_code)]

mod saved;
mod tiny;

use neap_chat::{Event, Id, Options, Prompt, Reason, Refused, Request, Runner, Sampling, Usage};
use std::collections::BTreeMap;

struct Model {
    folder: tempfile::TempDir,
}

impl Model {
    fn new() -> Model {
        Model::with(&tiny::tiny(7))
    }

    fn of(architecture: &str) -> Model {
        Model::with(&tiny::writer_of(architecture, 7).finish())
    }

    fn with(bytes: &[u8]) -> Model {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m.gguf"), bytes).unwrap();
        Model { folder }
    }

    fn open(&self, context: usize, change: impl FnOnce(&mut Options)) -> Runner {
        let mut options = Options {
            engine: neap_llm::Options {
                context,
                threads: 1,
                chunk: 32,
                ..Default::default()
            },
            ..Options::default()
        };
        change(&mut options);
        Runner::open(&self.folder.path().join("m.gguf"), &options).unwrap()
    }
}

#[derive(Debug, Default, Clone, PartialEq)]
struct Answer {
    text: String,
    logprobs: Vec<f64>,
    end: Option<(Reason, Usage)>,
}

fn drain(runner: &mut Runner) -> BTreeMap<Id, Answer> {
    let mut answers: BTreeMap<Id, Answer> = BTreeMap::new();
    while !runner.is_idle() {
        let mut take = |id, event| {
            let answer = answers.entry(id).or_default();
            assert!(answer.end.is_none(), "an event after the last");
            match event {
                Event::Text(text) | Event::Reasoning(text) => answer.text += &text,
                Event::Logprobs(told) => answer.logprobs.push(told.logprob),
                Event::Finished { reason, usage } => answer.end = Some((reason, usage)),
            }
        };
        runner.step(&Default::default(), &mut take).unwrap();
    }
    answers
}

fn alone(runner: &mut Runner, request: Request) -> Answer {
    let id = runner.submit(request).unwrap();
    drain(runner).remove(&id).unwrap()
}

/// Texts of several kinds: most repeat something, so that drafts are made.
fn requests() -> Vec<Request> {
    let prompts = [
        "the hen then, the hen then, the hen",
        "a",
        "0123456789 0123456789 01234",
        "Zoë said: hé",
    ];
    let mut requests = Vec::new();
    for (index, prompt) in prompts.iter().enumerate() {
        for temperature in [0.0, 0.6] {
            requests.push(Request {
                max_tokens: Some(40 + index),
                ignore_end: true,
                sampling: Sampling {
                    temperature,
                    seed: index as u64,
                    logprobs: Some(2),
                    ..Sampling::default()
                },
                ..Request::new(Prompt::Text(prompt.repeat(index + 1)))
            });
        }
    }
    requests
}

#[test]
fn an_answer_is_the_same_in_company_and_however_it_was_drafted() {
    for architecture in ["llama", "phi3", "lfm2"] {
        in_company_and_drafted(&Model::of(architecture));
    }
}

fn in_company_and_drafted(model: &Model) {
    let of = |answer: &Answer| (answer.text.clone(), answer.logprobs.clone());
    let mut plain = Vec::new();
    for request in requests() {
        let mut runner = model.open(512, |options| options.most_draft = 0);
        plain.push(alone(&mut runner, request));
    }
    assert!(plain.iter().all(|a| a.logprobs.len() >= 40));
    let mut drafting = model.open(2048, |_| {});
    for (request, plain) in requests().into_iter().zip(&plain) {
        assert_eq!(of(&alone(&mut drafting, request)), of(plain));
    }
    let figures = drafting.figures();
    assert!(
        figures.right > 0 && figures.drafted > figures.right,
        "{figures:?}"
    );
    let mut company = model.open(2048, |options| options.engine.chunk = 8);
    let ids: Vec<Id> = requests()
        .into_iter()
        .map(|r| company.submit(r).unwrap())
        .collect();
    let answers = drain(&mut company);
    for (id, plain) in ids.iter().zip(&plain) {
        assert_eq!(of(&answers[id]), of(plain));
    }
}

#[test]
fn beginnings_are_computed_once() {
    let model = Model::new();
    let mut runner = model.open(1024, |_| {});
    let long = "once upon a time ".repeat(12);
    let request = |end: &str| Request {
        max_tokens: Some(8),
        ignore_end: true,
        ..Request::new(Prompt::Text(format!("{long}{end}")))
    };
    let first = alone(&mut runner, request("x"));
    let second = alone(&mut runner, request("y"));
    let usage = |answer: &Answer| answer.end.clone().unwrap().1;
    assert_eq!(usage(&first).cached_tokens, 0);
    assert_eq!(usage(&second).cached_tokens, long.len());
    let fresh = alone(&mut model.open(1024, |_| {}), request("y"));
    assert_eq!(fresh.text, second.text);
    // What it answered itself is shared, too, and the last token of a prompt never.
    let again = alone(&mut runner, request("y"));
    assert_eq!(usage(&again).cached_tokens, long.len());
    assert_eq!(again.text, second.text);
}

#[test]
fn what_has_no_room_is_refused_and_what_has_ends() {
    let model = Model::new();
    let mut runner = model.open(256, |_| {});
    let request = |prompt: usize, most| Request {
        max_tokens: most,
        ignore_end: true,
        ..Request::new(Prompt::Tokens(
            (0..prompt as u32).map(|t| t % 200).collect(),
        ))
    };
    let never = runner.submit(request(250, Some(10))).unwrap_err();
    assert!(
        matches!(
            never,
            Refused::TooLong {
                needed_positions: 260,
                context: 256
            }
        ),
        "{never}"
    );
    let first = runner.submit(request(60, Some(68))).unwrap();
    let full = runner.submit(request(100, Some(60))).unwrap_err();
    assert!(full.is_for_now(), "{full}");
    let second = runner.submit(request(64, Some(64))).unwrap();
    let answers = drain(&mut runner);
    for (id, tokens) in [(first, 68), (second, 64)] {
        let (reason, usage) = answers[&id].end.clone().unwrap();
        assert_eq!((reason, usage.completion_tokens), (Reason::Length, tokens));
    }
    // Finished texts make room, and nothing leaks.
    for round in 0..6 {
        let mut long = request(200, Some(56));
        if let Prompt::Tokens(tokens) = &mut long.prompt {
            tokens[0] = round;
        }
        assert_eq!(alone(&mut runner, long).end.unwrap().0, Reason::Length);
    }
    let all = alone(&mut runner, request(10, None)).end.unwrap().1;
    assert_eq!(all.completion_tokens, 246);
    assert!(matches!(
        runner.submit(request(0, None)),
        Err(Refused::Invalid(_))
    ));
    assert!(matches!(
        runner.submit(request(5, Some(0))),
        Err(Refused::Invalid(_))
    ));
    let stray = Request::new(Prompt::Tokens(vec![1, 9999]));
    assert!(matches!(runner.submit(stray), Err(Refused::Invalid(_))));
}

#[test]
fn stop_strings_and_cancelling_end_an_answer() {
    let model = Model::new();
    let mut runner = model.open(512, |_| {});
    let request = Request {
        max_tokens: Some(60),
        ignore_end: true,
        ..Request::new(Prompt::Text("hello".into()))
    };
    let whole = alone(&mut runner, request.clone()).text;
    let middle: Vec<char> = whole.chars().collect();
    let stop: String = middle[10..12].iter().collect();
    let stopped = alone(
        &mut runner,
        Request {
            stop: vec![stop.clone()],
            ..request.clone()
        },
    );
    assert_eq!(stopped.text, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(stopped.end.unwrap().0, Reason::Stop);
    let id = runner.submit(request.clone()).unwrap();
    runner.step(&Default::default(), &mut |_, _| {}).unwrap();
    let asked = neap_runtime::CancelToken::new();
    asked.cancel();
    let error = runner.step(&asked, &mut |_, _| {}).unwrap_err();
    assert!(error.is_cancelled() && !runner.is_idle());
    runner.cancel(id);
    assert_eq!(
        drain(&mut runner)[&id].end.clone().unwrap().0,
        Reason::Cancelled
    );
    assert_eq!(alone(&mut runner, request).text, whole);
}

#[test]
fn chats_are_written_by_the_models_template() {
    let model = Model::new();
    let runner = model.open(256, |_| {});
    let chat = Prompt::Chat {
        messages: vec![serde_json::json!({"role": "user", "content": "hi"})],
        tools: Vec::new(),
        thinking: None,
    };
    let (tokens, rendered) = runner.tokens(&chat).unwrap();
    assert_eq!(
        rendered.unwrap(),
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant"
    );
    assert_eq!(
        tokens[..6],
        [
            257,
            u32::from(b'u'),
            u32::from(b's'),
            u32::from(b'e'),
            u32::from(b'r'),
            10
        ]
    );
    assert_eq!(tokens.iter().filter(|&&t| t == tiny::END).count(), 1);
}

#[test]
fn texts_that_begin_together_compute_their_beginning_once() {
    let model = Model::new();
    let long = "once upon a time ".repeat(20);
    let request = |end: &str, seed| Request {
        max_tokens: Some(12),
        ignore_end: true,
        sampling: Sampling {
            temperature: 0.7,
            seed,
            ..Sampling::default()
        },
        ..Request::new(Prompt::Text(format!("{long}{end}")))
    };
    let ends = ["x", "yz", "x", "once"];
    let plain: Vec<Answer> = (0..)
        .zip(ends)
        .map(|(seed, end)| alone(&mut model.open(512, |_| {}), request(end, seed)))
        .collect();
    // Together the prompts alone are more than the context.
    let context = 1024;
    assert!(ends.len() * long.len() > context);
    let mut runner = model.open(context, |options| options.most_draft = 0);
    let ids: Vec<Id> = (0..)
        .zip(ends)
        .map(|(seed, end)| runner.submit(request(end, seed)).unwrap())
        .collect();
    let answers = drain(&mut runner);
    let mut computed = long.len();
    for (index, (id, plain)) in ids.iter().zip(&plain).enumerate() {
        assert_eq!(answers[id].text, plain.text);
        let usage = answers[id].end.clone().unwrap().1;
        assert_eq!(usage.cached_tokens >= long.len(), index > 0, "{usage:?}");
        computed += usage.prompt_tokens - usage.cached_tokens.max(long.len());
        computed += usage.completion_tokens - 1;
    }
    assert_eq!(runner.figures().engine.rows, computed as u64);
}

#[test]
fn a_beginning_that_is_never_finished_is_computed_by_who_waited_for_it() {
    let model = Model::new();
    let long = "once upon a time ".repeat(20);
    for (steps, chunk) in [(0, 32), (1, 32), (1, 128), (3, 128)] {
        let mut runner = model.open(512, |options| options.engine.chunk = chunk);
        let request = |end: &str| Request {
            max_tokens: Some(8),
            ignore_end: true,
            ..Request::new(Prompt::Text(format!("{long}{end}")))
        };
        let first = runner.submit(request("x")).unwrap();
        let others = ["y", "z"].map(|end| runner.submit(request(end)).unwrap());
        let mut early = BTreeMap::new();
        for _ in 0..steps {
            let mut note = |id, event| drop(early.insert(id, event));
            runner.step(&Default::default(), &mut note).unwrap();
        }
        runner.cancel(first);
        let answers = drain(&mut runner);
        for (id, end) in others.iter().zip(["y", "z"]) {
            let plain = alone(&mut model.open(512, |_| {}), request(end));
            assert_eq!(answers[id].text, plain.text, "after {steps} of {chunk}");
        }
    }
}
