//! Makes prompts by the template of a file, for scripts/compare_templates.py: `render MODEL.gguf`. Each line of standard input is a JSON
//! object with `messages` and what else the template is given; each line of the output is a JSON text, or an object with an error.

use neap_gguf::Header;
use neap_tokenizer::Tokenizer;
use neap_tokenizer::chat::{ChatTemplate, Json};
use serde::Deserialize;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, stdin};

#[derive(Deserialize)]
struct Arguments {
    messages: Json,
    tools: Option<Json>,
    #[serde(default)]
    add_generation_prompt: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: render MODEL.gguf")?;
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let header = Header::read(BufReader::new(&mut file), len)?;
    let tokenizer = Tokenizer::open(&header, &mut file)?;
    let template = ChatTemplate::of(&header, &tokenizer).ok_or("the file has no chat template")?;
    for line in stdin().lock().lines() {
        let given: Arguments = serde_json::from_str(&line?)?;
        let prompt = template.render(
            &given.messages,
            given.tools.as_ref(),
            given.add_generation_prompt,
            None,
            &[],
        );
        println!(
            "{}",
            match prompt {
                Ok(prompt) => serde_json::json!(prompt),
                Err(error) => serde_json::json!({ "error": error.to_string() }),
            }
        );
    }
    Ok(())
}
