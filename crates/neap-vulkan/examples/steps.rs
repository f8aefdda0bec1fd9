//! Which steps of models the device computes: `steps CACHE NAME...`, where a name with a dot is a file, and one without is a
//! network of the zoo. One line for each: name, steps, steps on the device, and those of the processor by operator.

use neap_vulkan::{Options, Vulkan};
use neaptide::{Accelerator, Cache, Model, OpenOptions};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Of dimensions that a transformer leaves open.
const SEQUENCE: [usize; 2] = [1, 32];
const TOKENS: [&str; 3] = ["input_ids", "attention_mask", "token_type_ids"];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let cache = arguments.next().ok_or("steps CACHE NAME...")?;
    let folder = tempfile::tempdir()?;
    let open = OpenOptions {
        cache: Cache::Folder(cache.into()),
        shape_hints: TOKENS.map(|name| (name.into(), SEQUENCE.into())).into(),
        ..OpenOptions::default()
    };
    let device = Vulkan::open(&Options::default())?;
    for name in arguments {
        let (told, path) = match name.contains('.') {
            true => (stem(&name), PathBuf::from(&name)),
            false => (name.clone(), without_weights(&name, folder.path())?),
        };
        let model = Model::open(&path, &open, &mut |_| {}).map_err(|e| format!("{name}: {e}"))?;
        let program = model.program();
        let here = device.computes(program);
        let mut others: BTreeMap<&str, usize> = BTreeMap::new();
        for (step, _) in program.steps.iter().zip(&here).filter(|(_, here)| !**here) {
            let name = program.graph.nodes[step.index()].op.name();
            *others.entry(name).or_default() += 1;
        }
        let others = others.iter().map(|(name, count)| format!("{name} {count}"));
        println!(
            "{told}\t{}\t{}\t{}",
            here.len(),
            here.iter().filter(|here| **here).count(),
            others.collect::<Vec<_>>().join(", ")
        );
    }
    Ok(())
}

fn stem(path: &str) -> String {
    let stem = Path::new(path).file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// Steps follow from shapes.
fn without_weights(network: &str, folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let path = folder.join(format!("{network}.onnx"));
    let options = neap_zoo::Options {
        shapes_only: true,
        ..neap_zoo::Options::default()
    };
    neap_zoo::write(network, &path, &options, &mut |_, _| {})?;
    Ok(path)
}
