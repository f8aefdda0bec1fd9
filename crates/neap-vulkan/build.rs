//! Kernels from WGSL to SPIR-V.

use naga::back::spv;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Each with the parts that come before it. Where one of them is `weights`, there is another kernel `_bits` for weights of fewer bits,
/// and of matrices `_blocks` for weights in blocks; where one is `near`, another one `_apart`, where one is `full`, another one
/// `_spread`, and where one is `plain`, others `_more`.
const KERNELS: &[(&str, &[&str])] = &[
    ("conv", &["window", "weights", "common"]),
    (
        "conv_lanes",
        &[
            "plain", "finish", "places", "tile", "sums", "window", "weights", "common",
        ],
    ),
    (
        "first_lanes",
        &[
            "plain", "finish", "places", "sums", "window", "weights", "common",
        ],
    ),
    (
        "depthwise_lanes",
        &["plain", "near", "finish", "window", "weights", "common"],
    ),
    (
        "linear_lanes",
        &["tile", "sums", "four", "matrix", "weights", "common"],
    ),
    (
        "conv_tiles",
        &["tiles", "tiles_window", "window", "weights", "common"],
    ),
    (
        "first_tiles",
        &["tiles", "tiles_window", "window", "weights", "common"],
    ),
    (
        "linear_tiles",
        &["tiles", "four", "matrix", "weights", "common"],
    ),
    ("attention_tiles", &["heads", "common"]),
    ("linear_row_lanes", &["four", "matrix", "weights", "common"]),
    ("winograd_weights_lanes", &["winograd", "common"]),
    ("winograd_input_lanes", &["winograd", "common"]),
    (
        "winograd_output_lanes",
        &["plain", "finish", "winograd", "common"],
    ),
    ("first", &["window", "weights", "common"]),
    ("narrow", &["window", "weights", "common"]),
    ("pool", &["window", "common"]),
    ("linear", &["matrix", "weights", "common"]),
    ("linear_row", &["four", "matrix", "weights", "common"]),
    ("element", &["plain", "full", "common"]),
    ("reorder", &["common"]),
    ("rows", &["row", "common"]),
    ("rows_lanes", &["row", "common"]),
    ("copy", &["common"]),
    ("move", &["common"]),
    ("product", &["common"]),
    ("attention", &["heads", "common"]),
    ("attention_lanes", &["plain", "heads", "common"]),
    ("fold", &["common"]),
    ("resize", &["common"]),
    ("mixed", &["common"]),
    ("gather", &["common"]),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=src/shaders");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for (name, parts) in KERNELS {
        for (to, parts) in variants(name, parts) {
            write(&out, &to, name, &parts)?;
        }
        for (kind, weights) in [("bits", "weights_bits"), ("blocks", "weights_blocks")] {
            // Only matrices are in blocks.
            let is_there = parts.contains(&"weights")
                && !name.ends_with("_lanes")
                && (kind == "bits" || parts.contains(&"matrix"));
            if is_there {
                let others = |part: &&'static str| match *part {
                    "weights" => weights,
                    part => part,
                };
                let parts: Vec<&str> = parts.iter().map(others).collect();
                write(&out, &format!("{name}_{kind}"), name, &parts)?;
            }
        }
    }
    Ok(())
}

/// With parts instead of others.
fn variants(name: &str, parts: &[&'static str]) -> Vec<(String, Vec<&'static str>)> {
    let mut all = vec![(name.to_owned(), parts.to_vec())];
    for (part, other) in [("near", "apart"), ("full", "spread"), ("plain", "more")] {
        for (to, mut parts) in all.clone() {
            if let Some(found) = parts.iter_mut().find(|p| **p == part) {
                *found = other;
                all.push((format!("{to}_{other}"), parts));
            }
        }
    }
    all
}

fn write(out: &Path, to: &str, name: &str, parts: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    for part in parts.iter().chain([&name]) {
        text += &fs::read_to_string(Path::new("src/shaders").join(format!("{part}.wgsl")))?;
    }
    let words = compile(&text).map_err(|e| format!("{to}.wgsl: {e}"))?;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    fs::write(out.join(format!("{to}.spv")), bytes)?;
    Ok(())
}

fn compile(text: &str) -> Result<Vec<u32>, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    // Half floats are only unpacked, which every device does.
    let capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32 | Capabilities::SUBGROUP;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all())
        .validate(&module)
        .map_err(|e| e.emit_to_string(text))?;
    let options = spv::Options {
        lang_version: (1, 3),
        // Software drivers compile a loop over all of it, for minutes. Kernels write before they read.
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        flags: spv::WriterFlags::empty(),
        // Kernels stay inside their operands, whose sizes are checked before.
        bounds_check_policies: naga::proc::BoundsCheckPolicies::default(),
        force_loop_bounding: false,
        ..spv::Options::default()
    };
    spv::write_vec(&module, &info, &options, None).map_err(|e| e.to_string())
}
