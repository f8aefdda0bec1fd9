//! Each instruction set of this processor against onnxruntime, with no budget and at the smallest.

use crate::accuracy;
use crate::models::{self, Case};
use anyhow::{Result, bail};
use std::path::Path;

/// Convolutions of all kinds, and attention.
const MODELS: [&str; 3] = ["squeezenet1_1", "mobilenet_v2", "gpt2"];

pub fn run(root: &Path) -> Result<()> {
    let neap = models::neap(root)?;
    let python = models::python(root)?;
    if python.is_none() {
        neap_testing::skip("instruction sets against onnxruntime: no Python environment");
    }
    let best = neaptide::Isa::detect();
    let mut failed = false;
    for name in MODELS {
        let visitor = models::Visitor::new(root, name)?;
        for isa in neaptide::Isa::available().filter(|&isa| isa != best) {
            let case = Case {
                name: format!("{name}-{}", isa.name()),
                model: visitor.path().to_path_buf(),
                inputs: Vec::new(),
                expected: None,
            };
            let options = ["--isa", isa.name()];
            match accuracy::check(root, &neap, python.as_deref(), &case, &options) {
                Ok(line) => println!("ok    {line}"),
                Err(error) => {
                    println!("WRONG {}: {error:#}", case.name);
                    failed = true;
                }
            }
        }
    }
    if failed {
        bail!("an instruction set is wrong");
    }
    Ok(())
}
