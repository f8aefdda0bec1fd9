//! Builders of the papers' networks with seeded weights, written as ONNX.
//!
//! Each network has the published architecture (the parameter counts agree) and is laid out as
//! PyTorch exports it: opset 17, BatchNormalization left as nodes, attention as primitive
//! operators. Weights are random but well-behaved: activations keep unit size through the depth,
//! BatchNorm statistics fit the layer they follow, softmax does not saturate, and outputs depend
//! on the input. The same name, options and seed give the same bytes on every machine.
//!
//! ```no_run
//! use neap_zoo::{Options, write};
//! let written = write("resnet50", "resnet50.onnx".as_ref(), &Options::default(), &mut |_, _| {})?;
//! assert_eq!(written.parameters, 25_557_032);
//! # Ok::<(), neap_zoo::ZooError>(())
//! ```
//!
//! [`import`] writes such networks with the weights of a checkpoint.
//!
//! This crate holds no tensor in memory: values are generated, or read, while they are written.
#![forbid(unsafe_code)]

mod checkpoint;
mod folders;
mod graph;
mod init;
mod layers;
mod nets;
mod protobuf;
mod stats;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

pub use checkpoint::{Imported, import};
pub use folders::{FolderEntry, FolderOptions, folders, write_folder};
pub use graph::Batch;
use graph::Graph;
use writer::Seeded;

/// One network of the zoo.
#[derive(Debug)]
#[non_exhaustive]
pub struct ZooEntry {
    /// The name that [`write()`] takes.
    pub name: &'static str,
    /// One line for a person.
    pub summary: &'static str,
    /// Trained parameters, as the literature counts them.
    pub parameters: u64,
    /// Name of the only input.
    pub input_name: &'static str,
    /// Its shape at batch 1: f32 images as N×C×H×W, or int64 token ids as N×tokens.
    pub input_shape: &'static [usize],
    /// It is for planning: its weights, tens of gigabytes for some, are not written
    /// ([`Options::shapes_only`]).
    pub shapes_only: bool,
    build: fn(&mut Graph),
}

/// How to write a network.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of all weights.
    pub seed: u64,
    /// Size of the first dimension of inputs and outputs.
    pub batch: Batch,
    /// Leave the size of images, or the number of tokens, to whoever opens the model: named dimensions instead of
    /// numbers. For networks that take any.
    pub free_size: bool,
    /// For `gpt2`: end in the language-model head (as `gpt2_lm` always does).
    pub lm_head: bool,
    /// Put the weights into `<file name>.data` beside the model instead of into it.
    pub external_data: bool,
    /// Weights as external data without content: a sparse file of the right size that takes no space, and
    /// reads as zeros. For planning and simulating.
    pub shapes_only: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 0,
            batch: Batch::Fixed(1),
            free_size: false,
            lm_head: false,
            external_data: false,
            shapes_only: false,
        }
    }
}

/// What [`write()`] has written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Size of the `.onnx` file.
    pub model_bytes: u64,
    /// The external data file and its size, when one was asked for.
    pub external: Option<(PathBuf, u64)>,
    /// Bytes of all initializers.
    pub weight_bytes: u64,
    /// Trained parameters.
    pub parameters: u64,
}

/// Why a network could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZooError {
    #[error("no network is named '{name}'; there are {}", names())]
    UnknownName { name: String },
    #[error("the language-model head is an option of gpt2, not of {name}")]
    NoLmHead { name: &'static str },
    #[error("{name} takes inputs of one size only; those of any size are {}", FREE_SIZED.join(", "))]
    NotFree { name: &'static str },
    #[error("{name} is for planning, and has {weight_bytes} bytes of weights: ask for shapes only")]
    ShapesOnly {
        name: &'static str,
        weight_bytes: u64,
    },
    #[error("the batch size must be from 1 to 65536, not {batch}")]
    BadBatch { batch: u32 },
    #[error("{} is no usable file name for a model", path.display())]
    BadPath { path: PathBuf },
    #[error("a model of {size_bytes} bytes does not fit into one ONNX file; ask for external data")]
    TooLarge { size_bytes: u64 },
    #[error("{text}")]
    Checkpoint { text: String },
    #[error("cannot write {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// All networks.
pub fn list() -> &'static [ZooEntry] {
    ENTRIES
}

/// Finds a network by name; `-` and `_` are the same, as are upper and lower case.
pub fn find(name: &str) -> Option<&'static ZooEntry> {
    let key = name.to_ascii_lowercase().replace('-', "_");
    ENTRIES.iter().find(|e| e.name == key)
}

/// Writes the network `name` to `path`, under a temporary name until it is complete.
/// `progress` hears the bytes written and their total.
///
/// # Errors
/// [`ZooError`] where there is no such network, an option does not apply to it, or the file cannot be written.
pub fn write(
    name: &str,
    path: &Path,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Written, ZooError> {
    let graph = build(name, options)?;
    if let Some(entry) = find(name).filter(|e| e.shapes_only && !options.shapes_only) {
        return Err(ZooError::ShapesOnly {
            name: entry.name,
            weight_bytes: graph.weight_bytes(),
        });
    }
    let weights = match (options.shapes_only, options.external_data) {
        (true, _) => writer::Weights::Absent,
        (false, true) => writer::Weights::External(writer::DATA_ENDING),
        (false, false) => writer::Weights::Inline,
    };
    let files = writer::write(&graph, &Seeded(options.seed), path, weights, progress)?;
    Ok(Written {
        model_bytes: files.model_bytes,
        external: files.external,
        weight_bytes: graph.weight_bytes(),
        parameters: graph.parameter_count(),
    })
}

fn build(name: &str, options: &Options) -> Result<Graph, ZooError> {
    let entry = find(name).ok_or_else(|| ZooError::UnknownName {
        name: name.to_string(),
    })?;
    if let Batch::Fixed(batch) = options.batch
        && !(1..=65536).contains(&batch)
    {
        return Err(ZooError::BadBatch { batch });
    }
    let build = match (options.lm_head, entry.name) {
        (false, _) | (true, "gpt2_lm") => entry.build,
        (true, "gpt2") => |g: &mut Graph| nets::gpt2::gpt2(g, true),
        (true, name) => return Err(ZooError::NoLmHead { name }),
    };
    if options.free_size && !FREE_SIZED.contains(&entry.name) {
        return Err(ZooError::NotFree { name: entry.name });
    }
    let mut graph = Graph::new(entry.name, options.batch);
    graph.is_free = options.free_size;
    build(&mut graph);
    Ok(graph.finish())
}

fn names() -> String {
    ENTRIES
        .iter()
        .map(|e| e.name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Networks whose weights serve inputs of any size.
const FREE_SIZED: &[&str] = &[
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50",
    "mobilenet_v2",
    "squeezenet1_1",
    "densenet121",
    "inception_v3",
    "efficientnet_b0",
    "yolov3",
    "u2net",
    "isnet",
    "srvgg_x4",
    "gpt2",
    "gpt2_lm",
];

const IMAGE_224: &[usize] = &[1, 3, 224, 224];

macro_rules! entry {
    ($name:literal, $parameters:literal, $input:literal $shape:expr, $build:expr, $summary:literal) => {
        ZooEntry {
            name: $name,
            summary: $summary,
            parameters: $parameters,
            input_name: $input,
            input_shape: $shape,
            shapes_only: false,
            build: $build,
        }
    };
    (shapes $($rest:tt)*) => {
        ZooEntry {
            shapes_only: true,
            ..entry!($($rest)*)
        }
    };
}

static ENTRIES: &[ZooEntry] = &[
    entry!("resnet50", 25_557_032, "input" IMAGE_224, nets::resnet::resnet50, "ResNet-50, image classifier"),
    entry!("resnet101", 44_549_160, "input" IMAGE_224, nets::resnet::resnet101, "ResNet-101, image classifier"),
    entry!("resnet152", 60_192_808, "input" IMAGE_224, nets::resnet::resnet152, "ResNet-152, image classifier"),
    entry!("resnext50", 25_028_904, "input" IMAGE_224, nets::resnet::resnext50,
        "ResNeXt-50 32x4d, image classifier with grouped convolutions"),
    entry!("vgg19", 143_667_240, "input" IMAGE_224, nets::vgg::vgg19,
        "VGG-19, image classifier with 400 MB in its first fully connected layer"),
    entry!("mobilenet_v2", 3_504_872, "input" IMAGE_224, nets::mobilenet::mobilenet_v2,
        "MobileNetV2, small image classifier with depthwise convolutions"),
    entry!("squeezenet1_1", 1_235_496, "input" IMAGE_224, nets::squeezenet::squeezenet1_1,
        "SqueezeNet 1.1, very small image classifier"),
    entry!("densenet121", 7_978_856, "input" IMAGE_224, nets::densenet::densenet121,
        "DenseNet-121, image classifier with dense concatenations"),
    entry!(
        "inception_v3",
        23_834_568,
        "input" & [1, 3, 299, 299],
        nets::inception::inception_v3,
        "Inception v3, image classifier with parallel branches"
    ),
    entry!("vit_b_16", 86_567_656, "input" IMAGE_224, nets::vit::vit_b_16, "ViT-B/16, vision transformer"),
    entry!(
        "gpt2",
        124_439_808,
        "input_ids" & [1, nets::gpt2::TOKENS],
        |g| nets::gpt2::gpt2(g, false),
        "GPT-2 on 128 tokens, final hidden states"
    ),
    entry!(
        "gpt2_lm",
        124_439_808,
        "input_ids" & [1, nets::gpt2::TOKENS],
        |g| nets::gpt2::gpt2(g, true),
        "GPT-2 on 128 tokens with its language-model head tied to the embedding"
    ),
    entry!(
        "yolov3",
        61_949_149,
        "input" & [1, 3, 416, 416],
        nets::yolo::yolov3,
        "YOLOv3 on Darknet-53, three raw detection maps"
    ),
    entry!("efficientnet_b0", 5_288_548, "input" IMAGE_224, nets::efficientnet::efficientnet_b0,
        "EfficientNet-B0, image classifier whose channels are scaled by the whole image"),
    entry!(
        "u2net",
        44_009_869,
        "input" & [1, 3, 320, 320],
        nets::saliency::u2net,
        "U2-Net, a nested network for masks of what stands out"
    ),
    entry!(
        "isnet",
        44_033_537,
        "input" & [1, 3, 1024, 1024],
        nets::saliency::isnet,
        "IS-Net, the same for large images"
    ),
    entry!(
        "srvgg_x4",
        1_213_296,
        "input" & [1, 3, 270, 480],
        nets::srvgg::srvgg,
        "Real-ESRGAN's compact network, four times the size of a picture"
    ),
    entry!("fcn_resnet101", 51_949_141, "input" IMAGE_224, |g| nets::resnet::fcn_resnet101(g, 224),
        "FCN on a dilated ResNet-101, semantic segmentation in 21 classes"),
    entry!(
        "inception_v4",
        42_679_816,
        "input" & [1, 3, 299, 299],
        |g| nets::inception_v4::inception_v4(g, 1),
        "Inception v4, image classifier with parallel branches"
    ),
    entry!(
        "nasnet_a_large",
        102_001_966,
        "input" & [1, 3, 331, 331],
        |g| nets::nasnet::nasnet_a(g, 7),
        "NASNet-A large with 3 x 7 normal cells, image classifier found by search"
    ),
    entry!(
        "mlp_28",
        101_770,
        "input" & [1, 1, 28, 28],
        nets::small::mlp,
        "One hidden layer for pictures of 28 x 28, to be trained"
    ),
    entry!(
        "cnn_28",
        421_642,
        "input" & [1, 1, 28, 28],
        nets::small::cnn,
        "Two convolutions for pictures of 28 x 28, to be trained"
    ),
    entry!(shapes "inception_v4_w4", 663_661_672, "input" & [1, 3, 299, 299], |g| nets::inception_v4::inception_v4(g, 4),
        "Inception v4, four times as wide"),
    entry!(shapes "nasnet_a_large_r25", 340_480_654, "input" & [1, 3, 331, 331], |g| nets::nasnet::nasnet_a(g, 25),
        "NASNet-A large with 3 x 25 normal cells"),
    entry!(shapes "wide_resnet152_w3", 528_474_280, "input" IMAGE_224, |g| nets::resnet::wide_resnet152(g, 3),
        "ResNet-152, three times as wide"),
    entry!(shapes "wide_resnet152_w4", 936_563_944, "input" IMAGE_224, |g| nets::resnet::wide_resnet152(g, 4),
        "ResNet-152, four times as wide"),
    entry!(shapes "wide_resnet152_w10", 5_820_386_920, "input" IMAGE_224, |g| nets::resnet::wide_resnet152(g, 10),
        "ResNet-152, ten times as wide"),
    entry!(shapes "rnn_8_2592", 430_147_584, "input" & [1, SMALL_RNN.steps, SMALL_RNN.width], |g| nets::recurrent::recurrent(g, &SMALL_RNN),
        "8 layers of LSTM cells with a state of 2592, unrolled"),
    entry!(shapes "rnn_8_8k", 4_295_491_584, "input" & [1, RNN.steps, RNN.width], |g| nets::recurrent::recurrent(g, &RNN),
        "8 layers of LSTM cells with a state of 8192, unrolled"),
    entry!(shapes "brnn_4_8k", 5_906_104_320, "input" & [1, BRNN.steps, BRNN.width], |g| nets::recurrent::recurrent(g, &BRNN),
        "4 layers of LSTM cells in both directions with a state of 8192, unrolled"),
];

/// Steps for about as many operators in a step of training as the paper counts.
const RNN: nets::recurrent::Recurrent = nets::recurrent::Recurrent {
    layers: 8,
    width: 8192,
    steps: 29,
    both_ways: false,
};

/// With a tenth of the parameters.
const SMALL_RNN: nets::recurrent::Recurrent = nets::recurrent::Recurrent { width: 2592, ..RNN };

const BRNN: nets::recurrent::Recurrent = nets::recurrent::Recurrent {
    layers: 4,
    steps: 34,
    both_ways: true,
    ..RNN
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_the_published_ones() {
        let counts = |e: &ZooEntry| {
            let graph = build(e.name, &Options::default()).unwrap();
            (e.name, e.parameters, graph.parameter_count())
        };
        let wrong: Vec<_> = list().iter().map(counts).filter(|c| c.1 != c.2).collect();
        assert_eq!(wrong, []);
    }

    /// The published NASNet-A large, which repeats normal cells six times.
    #[test]
    fn nasnet_has_the_published_cells() {
        let mut graph = Graph::new("nasnet", Batch::Fixed(1));
        nets::nasnet::nasnet_a(&mut graph, 6);
        assert_eq!(graph.finish().parameter_count(), 88_753_150);
    }

    #[test]
    fn graphs_are_well_formed() {
        use std::collections::HashSet;
        for entry in list() {
            for batch in [Batch::Fixed(1), Batch::Fixed(3), Batch::Dynamic] {
                let graph = build(
                    entry.name,
                    &Options {
                        batch,
                        ..Options::default()
                    },
                )
                .unwrap();
                let mut known = HashSet::new();
                for name in graph
                    .inputs
                    .iter()
                    .map(|p| &p.name)
                    .chain(graph.tensors.iter().map(|t| &t.name))
                {
                    assert!(known.insert(name.as_str()), "{}: {name} twice", entry.name);
                }
                for node in &graph.nodes {
                    for input in node.inputs.iter().filter(|i| !i.is_empty()) {
                        assert!(
                            known.contains(input.as_str()),
                            "{}: {input} unknown",
                            entry.name
                        );
                    }
                    for output in &node.output_names {
                        assert!(known.insert(output), "{}: {output} twice", entry.name);
                    }
                }
                assert!(
                    graph
                        .outputs
                        .iter()
                        .all(|p| known.contains(p.name.as_str())),
                    "{}",
                    entry.name
                );
            }
        }
    }

    #[test]
    fn wrong_requests_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.onnx");
        let mut quiet = |_, _| {};
        let attempt =
            |name: &str, options: Options, path: &Path, quiet: &mut dyn FnMut(u64, u64)| {
                write(name, path, &options, quiet).unwrap_err().to_string()
            };
        let message = attempt("resnet51", Options::default(), &path, &mut quiet);
        assert!(
            message.contains("resnet51") && message.contains("resnet50"),
            "{message}"
        );
        let lm = Options {
            lm_head: true,
            ..Options::default()
        };
        assert!(attempt("vgg19", lm, &path, &mut quiet).contains("gpt2"));
        let none = Options {
            batch: Batch::Fixed(0),
            ..Options::default()
        };
        assert!(attempt("vgg19", none, &path, &mut quiet).contains("batch"));
        let missing = dir.path().join("no/such/m.onnx");
        assert!(
            attempt("squeezenet1_1", Options::default(), &missing, &mut quiet).contains("m.onnx")
        );
        assert!(
            attempt(
                "squeezenet1_1",
                Options::default(),
                Path::new("/"),
                &mut quiet
            )
            .contains("file name")
        );
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing is left behind"
        );
    }

    #[test]
    fn names_are_forgiving() {
        assert_eq!(find("VIT-B-16").unwrap().name, "vit_b_16");
        assert!(find("vit").is_none());
    }
}
