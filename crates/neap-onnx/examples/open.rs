//! Opens a model and lists its graph: `open MODEL.onnx [NAME=1x3x224x224]...`

use neap_onnx::{OpenOptions, open};
use std::path::Path;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(model) = arguments.next() else {
        eprintln!("usage: open MODEL.onnx [NAME=1x3x224x224]...");
        std::process::exit(2);
    };
    let mut options = OpenOptions::default();
    for argument in arguments {
        let parsed = argument.split_once('=').and_then(|(name, shape)| {
            let sizes = shape.split('x').map(|d| d.parse().ok());
            Some((name.to_string(), sizes.collect::<Option<Vec<usize>>>()?))
        });
        let Some((name, shape)) = parsed else {
            eprintln!("'{argument}' is no NAME=SHAPE");
            std::process::exit(2);
        };
        options.shapes.insert(name, shape);
    }
    match open(Path::new(&model), &options) {
        Ok(graph) => print!("{graph}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    }
}
