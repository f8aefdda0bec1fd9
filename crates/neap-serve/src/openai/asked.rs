//! What clients of OpenAI ask, read from JSON. What is not known here is passed over, as their clients send much that is told to
//! others only; what would change the answer and is not done here is refused.

use super::fault::{Answered, Fault};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Answers of one request, over all its prompts.
pub const MOST_ANSWERS: usize = 64;

/// Words that end an answer, and the bytes of each.
const MOST_STOPS: usize = 16;
const MOST_STOP_BYTES: usize = 256;

/// Most likely tokens that are told beside a chosen one.
const MOST_LIKELY: u32 = 20;

/// A request for `/v1/chat/completions` or `/v1/completions`.
#[derive(Debug, Deserialize)]
pub struct Asked {
    pub model: String,
    /// As they were sent; [`super::turns`] reads them.
    pub messages: Option<Vec<Value>>,
    pub prompt: Option<Prompts>,
    #[serde(default)]
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    n: Option<u32>,
    best_of: Option<u32>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    /// Not of OpenAI's, but of many servers.
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub seed: Option<i64>,
    stop: Option<Stops>,
    logprobs: Option<Wanted>,
    top_logprobs: Option<u32>,
    logit_bias: Option<BTreeMap<String, Value>>,
    echo: Option<bool>,
    suffix: Option<String>,
    pub tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    functions: Option<Vec<Value>>,
    response_format: Option<Value>,
    reasoning_effort: Option<String>,
    chat_template_kwargs: Option<TemplateOptions>,
}

#[derive(Debug, Default, Clone, Deserialize)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: Option<bool>,
}

/// As vLLM's and llama.cpp's clients say it.
#[derive(Debug, Deserialize)]
struct TemplateOptions {
    enable_thinking: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    ManyTokens(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stops {
    One(String),
    Many(Vec<String>),
}

/// Whether log-probabilities are wanted (chat), or of how many tokens (completions).
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Wanted {
    Flag(bool),
    Count(u32),
}

impl Asked {
    /// # Errors
    /// The text is not what is asked here.
    pub fn read(body: &[u8]) -> Answered<Asked> {
        serde_json::from_slice(body).map_err(|error| {
            Fault::of_param("body", format!("the body is not what is expected: {error}"))
        })
    }

    /// Whether all values are in their ranges, and nothing is asked that is not done here.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Answered<()> {
        let within = |name, value: Option<f32>, low: f32, high: f32| match value {
            Some(value) if !(low..=high).contains(&value) => {
                let message = format!("{name} is {value}, and has to be from {low} to {high}");
                Err(Fault::of_param(name, message))
            }
            _ => Ok(()),
        };
        within("temperature", self.temperature, 0.0, 2.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.1, 10.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        self.check_stops()?;
        self.check_done()
    }

    fn check_stops(&self) -> Answered<()> {
        let stops = self.stops();
        if stops.len() > MOST_STOPS || stops.iter().any(|stop| stop.len() > MOST_STOP_BYTES) {
            let message = format!(
                "stop has at most {MOST_STOPS} texts of at most {MOST_STOP_BYTES} bytes each"
            );
            return Err(Fault::of_param("stop", message));
        }
        Ok(())
    }

    /// What is not done here.
    fn check_done(&self) -> Answered<()> {
        let refused = |param, what: &str| {
            let message = format!("{what} is not supported here");
            Err(Fault::of_param(param, message).coded("unsupported_parameter"))
        };
        if self
            .logit_bias
            .as_ref()
            .is_some_and(|bias| !bias.is_empty())
        {
            return refused("logit_bias", "logit_bias");
        }
        if self.functions.as_ref().is_some_and(|few| !few.is_empty()) {
            return refused("functions", "functions, which tools replaced,");
        }
        if self.echo == Some(true) {
            return refused("echo", "echo");
        }
        if self
            .suffix
            .as_ref()
            .is_some_and(|suffix| !suffix.is_empty())
        {
            return refused("suffix", "suffix");
        }
        if self.best_of.is_some_and(|best| best != self.n.unwrap_or(1)) {
            return refused("best_of", "best_of other than n");
        }
        let format = self.response_format.as_ref();
        if format.is_some_and(|format| format["type"] != "text") {
            return refused("response_format", "response_format other than text");
        }
        match &self.tool_choice {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(choice)) if choice == "auto" || choice == "none" => Ok(()),
            _ => refused("tool_choice", "tool_choice other than auto and none"),
        }
    }

    /// How many answers each prompt is to have.
    ///
    /// # Errors
    /// None, or too many over all prompts.
    pub fn answers(&self, prompts: usize) -> Answered<usize> {
        let n = self.n.unwrap_or(1) as usize;
        let all = n.saturating_mul(prompts);
        if all == 0 || all > MOST_ANSWERS {
            let message = format!("{n} answers to {prompts} prompts: 1 to {MOST_ANSWERS} in all");
            return Err(Fault::of_param("n", message));
        }
        Ok(n)
    }

    /// Tokens of one answer, if that is said.
    ///
    /// # Errors
    /// None are wanted.
    pub fn most_tokens(&self) -> Answered<Option<usize>> {
        match self.max_completion_tokens.or(self.max_tokens) {
            Some(0) => {
                let message = "max_tokens is 0, and has to be at least 1";
                Err(Fault::of_param("max_tokens", message))
            }
            most => Ok(most.map(|most| most as usize)),
        }
    }

    pub fn stops(&self) -> &[String] {
        match &self.stop {
            None => &[],
            Some(Stops::One(stop)) => std::slice::from_ref(stop),
            Some(Stops::Many(stops)) => stops,
        }
    }

    /// Of how many likely tokens log-probabilities are wanted beside the chosen one's; `None`: of none at all.
    ///
    /// # Errors
    /// For more than are ever told.
    pub fn likely(&self) -> Answered<Option<usize>> {
        let (param, wanted) = match self.logprobs {
            None | Some(Wanted::Flag(false)) => return Ok(None),
            Some(Wanted::Flag(true)) => ("top_logprobs", self.top_logprobs.unwrap_or(0)),
            Some(Wanted::Count(count)) => ("logprobs", count),
        };
        if wanted > MOST_LIKELY {
            let message = format!("{param} is {wanted}, and at most {MOST_LIKELY}");
            return Err(Fault::of_param(param, message));
        }
        Ok(Some(wanted as usize))
    }

    /// Tools that the model may call.
    pub fn take_tools(&mut self) -> Vec<Value> {
        let is_none = self
            .tool_choice
            .as_ref()
            .is_some_and(|choice| choice == "none");
        let tools = self.tools.take().unwrap_or_default();
        if is_none { Vec::new() } else { tools }
    }

    /// Whether the model is to think first, if that is said.
    pub fn thinks(&self) -> Option<bool> {
        let told = self.chat_template_kwargs.as_ref();
        let told = told.and_then(|options| options.enable_thinking);
        let effort = self.reasoning_effort.as_deref();
        told.or(effort.map(|effort| effort != "none"))
    }

    pub fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    /// Whether a stream ends with what it took.
    pub fn tells_usage(&self) -> bool {
        let options = self.stream_options.as_ref();
        options.is_some_and(|options| options.include_usage == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        let asked = Asked::read(text.as_bytes()).and_then(|asked| {
            asked.check()?;
            asked.answers(1)?;
            asked.most_tokens()?;
            asked.likely()?;
            Ok(asked)
        });
        match asked {
            Ok(_) => String::new(),
            Err(fault) => {
                assert_eq!(fault.refusal.why.status(), 400);
                fault.refusal.message
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for right in [
            "",
            ", \"temperature\": 0, \"top_p\": 1.0, \"stop\": null, \"n\": 64",
            ", \"stop\": [\"a\", \"b\"], \"logprobs\": true, \"top_logprobs\": 20",
            ", \"logprobs\": 5, \"user\": \"somebody\", \"logit_bias\": {}",
            ", \"tool_choice\": \"auto\", \"response_format\": {\"type\": \"text\"}",
        ] {
            let text = format!("{{\"model\": \"m\"{right}}}");
            assert_eq!(fault(&text), "", "{text}");
        }
        for (wrong, named) in [
            (", \"n\": -1", "-1"),
            (", \"n\": 0", "0 answers"),
            (", \"n\": 65", "65 answers"),
            (", \"n\": 1e99", "1e+99"),
            (", \"max_tokens\": 0", "max_tokens"),
            (", \"temperature\": NaN", "expected value"),
            (", \"temperature\": 1e999", "out of range"),
            (", \"temperature\": 2.5", "temperature is 2.5"),
            (", \"temperature\": -1", "temperature is -1"),
            (", \"top_p\": \"all\"", "all"),
            (", \"logprobs\": 21", "logprobs is 21"),
            (", \"logit_bias\": {\"5\": 1}", "logit_bias"),
            (
                ", \"response_format\": {\"type\": \"json_object\"}",
                "response_format",
            ),
            (", \"tool_choice\": \"required\"", "tool_choice"),
            (", \"echo\": true", "echo"),
            (", \"stop\": [1]", "stop"),
            (", \"model\": \"n\"", "duplicate field"),
        ] {
            let text = format!("{{\"model\": \"m\"{wrong}}}");
            let told = fault(&text);
            assert!(
                told.contains(named) || (wrong.contains("stop") && !told.is_empty()),
                "{text}: {told}"
            );
            assert!(!told.contains('\n'), "{told}");
        }
    }

    #[test]
    fn hostile_bodies_are_refused() {
        let deep = format!(
            "{{\"model\": \"m\", \"tools\": [{}{}]}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(fault(&deep).contains("recursion"), "{}", fault(&deep));
        let mut bad = b"{\"model\": \"".to_vec();
        bad.extend([0xff, 0xfe, b'"', b'}']);
        assert!(Asked::read(&bad).is_err());
        for wrong in [
            "",
            "null",
            "[]",
            "{}",
            "{\"model\": null}",
            "{\"model\": \"m\"} x",
        ] {
            assert!(Asked::read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
