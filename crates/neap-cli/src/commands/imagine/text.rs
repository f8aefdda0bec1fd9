//! Prompts as the UNet takes them.

use super::Job;
use super::network::{Network, Values};
use super::report::Ran;
use crate::failure::{Outcome, bad};
use crate::progress::note;
use neaptide::memory;

/// What the text encoder says of each prompt.
pub struct Texts {
    /// Of nothing, or of what the picture should not show, where the picture is guided; then of the prompt.
    pub values: Vec<f32>,
    pub width: usize,
}

impl Job<'_> {
    pub fn text_encoder(&self) -> Outcome<Network> {
        let places = self.folder.places;
        Network::new(
            "text_encoder",
            self.folder.network("text_encoder"),
            0,
            |input| (input == "input_ids").then(|| vec![1, places]),
        )
    }

    /// Both prompts, one after the other.
    pub fn texts(&self, quiet: bool) -> Outcome<(Texts, Ran)> {
        let tokenizer = self.folder.tokenizer()?;
        let places = self.folder.places;
        let negative = self.is_guided().then_some(self.args.negative.as_str());
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
        let mut encoder = self.engine.open(&self.text_encoder()?)?;
        let mut values = Vec::new();
        for encoded in &encoded {
            let found = encoder.run(
                |_| Some(Values::Whole(&encoded.ids)),
                &["last_hidden_state"],
            )?;
            values.extend(found);
        }
        let width = values.len() / (encoded.len() * places);
        if width == 0 || width * encoded.len() * places != values.len() {
            return Err(bad(format!(
                "{}: it does not give one row for each of {places} tokens",
                self.folder.network("text_encoder").display()
            )));
        }
        Ok((Texts { values, width }, encoder.close()))
    }
}
