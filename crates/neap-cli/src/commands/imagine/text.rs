//! Prompts as the UNet takes them.

use super::Job;
use super::folder::Encoder;
use super::network::{Network, Running, Values};
use super::report::Ran;
use crate::failure::{Outcome, bad};
use crate::progress::note;
use neap_diffusion::Encoded;
use neaptide::memory;

/// What the text encoders say: of nothing, or of what the picture should not show, where the picture is guided; then of the prompt.
pub struct Texts {
    /// A row for each token; rows of several encoders side by side.
    pub rows: Vec<f32>,
    /// Of each prompt as a whole, from the last encoder; empty where the UNet does not take it.
    pub pooled: Vec<f32>,
}

/// What one encoder says of all prompts.
struct Found {
    rows: Vec<f32>,
    pooled: Vec<f32>,
}

impl Job<'_> {
    pub fn text_encoder(&self, encoder: &Encoder) -> Outcome<Network> {
        let places = self.folder.places;
        Network::new(
            encoder.network,
            self.folder.network(encoder.network),
            0,
            |input| (input == "input_ids").then(|| vec![1, places]),
        )
    }

    /// An empty negative prompt may be zeros, which no encoder has to be asked for.
    fn begins_with_zeros(&self) -> bool {
        self.is_guided() && self.args.negative.is_empty() && self.folder.zeros_if_empty
    }

    /// All prompts by each encoder, one after the other.
    pub fn texts(&self, quiet: bool) -> Outcome<(Texts, Vec<Ran>)> {
        let mut found = Vec::new();
        let mut reports = Vec::new();
        for (at, encoder) in self.folder.encoders().iter().enumerate() {
            // Both have the same words.
            let (of_one, report) = self.text(encoder, quiet || at > 0)?;
            found.push(of_one);
            reports.push(report);
        }
        let places = self.folder.places;
        let prompts = 1 + usize::from(self.is_guided());
        let mut texts = Texts {
            rows: Vec::new(),
            pooled: found
                .last_mut()
                .map(|last| std::mem::take(&mut last.pooled))
                .unwrap_or_default(),
        };
        let asked = prompts - usize::from(self.begins_with_zeros());
        for row in 0..asked * places {
            for of_one in &found {
                let width = of_one.rows.len() / (asked * places);
                texts.rows.extend(&of_one.rows[row * width..][..width]);
            }
        }
        if self.folder.is_xl && texts.pooled.is_empty() {
            return Err(bad(format!(
                "{}: its last text encoder has no output 'text_embeds'",
                self.folder.path().display()
            )));
        }
        if asked < prompts {
            for values in [&mut texts.rows, &mut texts.pooled] {
                values.splice(0..0, vec![0.0; values.len()]);
            }
        }
        Ok((texts, reports))
    }

    fn text(&self, encoder: &Encoder, quiet: bool) -> Outcome<(Found, Ran)> {
        let encoded = self.tokens(encoder, quiet)?;
        let mut network = self.engine.open(&self.text_encoder(encoder)?)?;
        let mut found = Found {
            rows: Vec::new(),
            pooled: Vec::new(),
        };
        let failed = |why: &str| {
            let path = self.folder.network(encoder.network);
            bad(format!("{}: {why}", path.display()))
        };
        for encoded in &encoded {
            network.run(|_| Some(Values::Whole(&encoded.ids)))?;
            let rows = match self.folder.is_xl {
                false => network.output(&["last_hidden_state"])?,
                true => last_but_one(&network)?
                    .ok_or_else(|| failed("it has no outputs 'hidden_states.0' and so on"))?,
            };
            if rows.is_empty() || rows.len() % self.folder.places != 0 {
                let places = self.folder.places;
                return Err(failed(&format!(
                    "it does not give one row for each of {places} tokens"
                )));
            }
            found.rows.extend(rows);
            if self.folder.is_xl {
                // Only the last encoder has it.
                found
                    .pooled
                    .extend(network.named("text_embeds")?.unwrap_or_default());
            }
        }
        Ok((found, network.close()))
    }

    fn tokens(&self, encoder: &Encoder, quiet: bool) -> Outcome<Vec<Encoded>> {
        let tokenizer = self.folder.tokenizer(encoder)?;
        let places = self.folder.places;
        let asks = self.is_guided() && !self.begins_with_zeros();
        let negative = asks.then_some(self.args.negative.as_str());
        let prompts = negative.into_iter().chain([self.args.prompt.as_str()]);
        let encoded: Vec<_> = prompts.map(|text| tokenizer.encode(text, places)).collect();
        drop(tokenizer);
        memory::trim_heap();
        for left_out in encoded.iter().map(|e| e.left_out).filter(|n| *n > 0) {
            if !quiet {
                note(&format!(
                    "the last {left_out} tokens of a prompt are left out: {places} places are all there are"
                ));
            }
        }
        Ok(encoded)
    }
}

/// What the last layer but one found, without the norm at the end.
fn last_but_one(network: &Running) -> Outcome<Option<Vec<f32>>> {
    let layer = |name: &str| name.strip_prefix("hidden_states.")?.parse::<usize>().ok();
    match network.outputs().filter_map(layer).max() {
        Some(last @ 1..) => network.named(&format!("hidden_states.{}", last - 1)),
        _ => Ok(None),
    }
}
