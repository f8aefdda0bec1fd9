//! Names, sizes and bytes of checkpoints as the module reads them.

use super::bind::transposed_of;
use super::file::TensorFile;
use super::found::Found;
use super::names::{Meaning, Original, Part, of_folder, of_graph};
use super::settings::Settings;
use super::sizes;
use crate::folders::networks;
use crate::graph::Graph;
use crate::nets::diffusion::{Activation, Family, Level, Model, SD_15, Text, Unet};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

fn published(names: &[&str]) -> Original {
    let shape = [
        "model.diffusion_model.input_blocks.3.0.op.weight",
        "model.diffusion_model.input_blocks.6.0.op.weight",
        "first_stage_model.decoder.up.3.block.0.conv1.weight",
    ];
    Original::of(names.iter().copied().chain(shape)).unwrap()
}

/// Names of Stable Diffusion 1.5, as both layouts have them.
#[test]
fn names_of_the_original_layout_become_those_of_diffusers() {
    let original = published(&[]);
    for (part, was, now) in [
        (
            Part::Unet,
            "model.diffusion_model.input_blocks.0.0.bias",
            "conv_in.bias",
        ),
        (
            Part::Unet,
            "model.diffusion_model.time_embed.2.weight",
            "time_embedding.linear_2.weight",
        ),
        (
            Part::Unet,
            "model.diffusion_model.input_blocks.1.0.in_layers.0.weight",
            "down_blocks.0.resnets.0.norm1.weight",
        ),
        (
            Part::Unet,
            "model.diffusion_model.input_blocks.5.1.transformer_blocks.0.attn2.to_out.0.bias",
            "down_blocks.1.attentions.1.transformer_blocks.0.attn2.to_out.0.bias",
        ),
        (
            Part::Unet,
            "model.diffusion_model.input_blocks.9.0.op.weight",
            "down_blocks.2.downsamplers.0.conv.weight",
        ),
        (
            Part::Unet,
            "model.diffusion_model.input_blocks.11.0.emb_layers.1.bias",
            "down_blocks.3.resnets.1.time_emb_proj.bias",
        ),
        (
            Part::Unet,
            "model.diffusion_model.middle_block.2.out_layers.3.weight",
            "mid_block.resnets.1.conv2.weight",
        ),
        (
            Part::Unet,
            "model.diffusion_model.output_blocks.2.1.conv.weight",
            "up_blocks.0.upsamplers.0.conv.weight",
        ),
        (
            Part::Unet,
            "model.diffusion_model.output_blocks.5.2.conv.bias",
            "up_blocks.1.upsamplers.0.conv.bias",
        ),
        (
            Part::Unet,
            "model.diffusion_model.output_blocks.11.0.skip_connection.bias",
            "up_blocks.3.resnets.2.conv_shortcut.bias",
        ),
        (
            Part::Unet,
            "model.diffusion_model.output_blocks.9.1.proj_in.weight",
            "up_blocks.3.attentions.0.proj_in.weight",
        ),
        (
            Part::Vae,
            "first_stage_model.encoder.down.1.block.0.nin_shortcut.weight",
            "encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
        ),
        (
            Part::Vae,
            "first_stage_model.decoder.up.0.block.2.norm2.bias",
            "decoder.up_blocks.3.resnets.2.norm2.bias",
        ),
        (
            Part::Vae,
            "first_stage_model.decoder.up.3.upsample.conv.bias",
            "decoder.up_blocks.0.upsamplers.0.conv.bias",
        ),
        (
            Part::Vae,
            "first_stage_model.decoder.mid.attn_1.k.weight",
            "decoder.mid_block.attentions.0.to_k.weight",
        ),
        (
            Part::Vae,
            "first_stage_model.encoder.mid.attn_1.norm.bias",
            "encoder.mid_block.attentions.0.group_norm.bias",
        ),
        (
            Part::Vae,
            "first_stage_model.post_quant_conv.weight",
            "post_quant_conv.weight",
        ),
        (
            Part::Text,
            "cond_stage_model.transformer.text_model.encoder.layers.11.mlp.fc1.weight",
            "text_model.encoder.layers.11.mlp.fc1.weight",
        ),
        (
            Part::Text,
            "cond_stage_model.transformer.embeddings.token_embedding.weight",
            "text_model.embeddings.token_embedding.weight",
        ),
    ] {
        assert_eq!(original.meaning(was), Meaning::Tensor(part, now.into()));
    }
    let unused = "cond_stage_model.transformer.text_model.embeddings.position_ids";
    assert_eq!(original.meaning(unused), Meaning::Unused);
    for unknown in [
        "model.diffusion_model.input_blocks.1.0.op.weight",
        "model.diffusion_model.input_blocks.3.1.proj_in.weight",
        "model.diffusion_model.output_blocks.99999999999.0.x",
        "first_stage_model.decoder.up.7.block.0.conv1.weight",
        "first_stage_model.other.mid.block_1.conv1.weight",
        "x",
        "",
    ] {
        assert_eq!(original.meaning(unknown), Meaning::Unknown, "{unknown}");
    }
    assert!(Original::of(["x"].into_iter()).is_none());
}

#[test]
fn names_of_open_clip() {
    let before = "cond_stage_model.model.transformer.resblocks";
    let last = format!("{before}.23.ln_1.weight");
    let original = published(&[&last]);
    let three =
        ["q", "k", "v"].map(|of| format!("text_model.encoder.layers.4.self_attn.{of}_proj.bias"));
    let stack = format!("{before}.4.attn.in_proj_bias");
    assert_eq!(
        original.meaning(&stack),
        Meaning::Stack(Part::Text, three.into())
    );
    let now = "text_model.encoder.layers.22.mlp.fc2.weight";
    let was = format!("{before}.22.mlp.c_proj.weight");
    assert_eq!(
        original.meaning(&was),
        Meaning::Tensor(Part::Text, now.into())
    );
    assert_eq!(original.meaning(&last), Meaning::Unused);
}

#[test]
fn names_of_older_files_and_of_graphs() {
    let now = |name: &str| {
        Meaning::Tensor(
            Part::Vae,
            format!("decoder.mid_block.attentions.0.{name}.weight"),
        )
    };
    for (old, new) in [
        ("query", "to_q"),
        ("proj_attn", "to_out.0"),
        ("to_q", "to_q"),
    ] {
        let name = format!("decoder.mid_block.attentions.0.{old}.weight");
        assert_eq!(of_folder(Part::Vae, &name), now(new));
    }
    let name = of_graph(Part::Text, "text_model.layers.3.self_attn.to_k.weight");
    assert_eq!(name, "text_model.encoder.layers.3.self_attn.k_proj.weight");
}

/// A folder of headers, with no values on the drive.
fn write_headers(folder: &Path, graphs: &[Graph]) {
    let mut parts = BTreeMap::<&str, Vec<(String, Vec<usize>)>>::new();
    for graph in graphs {
        let part = Part::of(graph.name).unwrap();
        let tensors = graph.tensors.iter().filter(|tensor| tensor.is_parameter);
        let multiplied = |name: &str| {
            let mut nodes = graph.nodes.iter().filter(|node| node.op == "MatMul");
            nodes.any(|node| node.inputs.get(1).is_some_and(|input| input == name))
        };
        let tensors = tensors.map(|tensor| {
            let mut dims = tensor.dims.clone();
            if multiplied(&tensor.name) {
                dims.reverse();
            }
            (of_graph(part, &tensor.name), dims)
        });
        parts.entry(part.folder()).or_default().extend(tensors);
    }
    for (part, tensors) in parts {
        let name = if part == "text_encoder" {
            "model"
        } else {
            "diffusion_pytorch_model"
        };
        let path = folder.join(part).join(format!("{name}.fp16.safetensors"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut at = 0;
        let entries = tensors.iter().map(|(name, dims)| {
            let start = at;
            at += 2 * dims.iter().product::<usize>();
            format!("\"{name}\":{{\"dtype\":\"F16\",\"shape\":{dims:?},\"data_offsets\":[{start},{at}]}}")
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        let mut file = File::create(path).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes())
            .unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.set_len((8 + header.len() + at) as u64).unwrap();
    }
}

fn check_sizes(family: Family) {
    let folder = tempfile::tempdir().unwrap();
    let expected = networks(&Model::StableDiffusion(family), 0, false);
    write_headers(folder.path(), &expected);
    let found = Found::open(folder.path()).unwrap();
    let sizes = sizes::of(&found, &Settings::default()).unwrap();
    let graphs = networks(&Model::StableDiffusion(sizes.family()), 0, false);
    for (a, b) in graphs.iter().zip(&expected) {
        let all = |graph: &Graph| format!("{:?}{:?}", graph.nodes, graph.outputs);
        assert!(all(a) == all(b), "{}", a.name);
        let shapes = |graph: &Graph| -> Vec<_> {
            let tensors = graph.tensors.iter();
            tensors.map(|t| (t.name.clone(), t.dims.clone())).collect()
        };
        assert_eq!(shapes(a), shapes(b));
    }
}

#[test]
fn shapes_say_what_stable_diffusion_1_and_2_are() {
    check_sizes(SD_15);
    let levels = [(320, 1, 5), (640, 1, 10), (1280, 1, 20), (1280, 0, 20)];
    let levels = levels.map(|(channels, layers, heads)| Level {
        channels,
        layers,
        heads,
    });
    let second = Family {
        text: Text {
            width: 1024,
            layers: 23,
            heads: 16,
            activation: Activation::Gelu,
            ..SD_15.text
        },
        unet: Unet {
            levels: &levels,
            linear_ends: true,
            ..SD_15.unet
        },
        ..SD_15
    };
    check_sizes(second);
}

#[test]
fn transposed_as_one_would_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    // The last are two strips.
    for (rows, columns) in [
        (1, 1),
        (1, 9),
        (9, 1),
        (17, 33),
        (16, 16),
        (40, 5),
        (3000, 1001),
    ] {
        for bytes in [2, 4] {
            let mut data = vec![0; rows * columns * bytes];
            ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut data);
            let dtype = if bytes == 2 { "BF16" } else { "F32" };
            let end = data.len();
            let header = format!(
                "{{\"x\":{{\"dtype\":\"{dtype}\",\"shape\":[{rows},{columns}],\"data_offsets\":[0,{end}]}}}}"
            );
            let length = (header.len() as u64).to_le_bytes();
            fs::write(&path, [&length[..], header.as_bytes(), &data].concat()).unwrap();
            let (file, mut tensors) = TensorFile::open(&path).unwrap();
            let stored = tensors.remove(0).1;
            let expected: Vec<u8> = (0..rows * columns)
                .flat_map(|at| {
                    let from = (at % rows * columns + at / rows) * bytes;
                    data[from..from + bytes].to_vec()
                })
                .collect();
            let found = transposed_of(file, stored, [rows, columns]).unwrap();
            assert!(found == expected, "{rows} {columns} {bytes}");
        }
    }
}

/// Whatever the bytes are, they are read or refused.
#[test]
fn damaged_headers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    let tensor = |shape: &str, start: u64, end: u64| {
        format!("{{\"dtype\":\"F16\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
    };
    let write = |length: u64, header: &str| {
        let data = [0; 64];
        fs::write(
            &path,
            [&length.to_le_bytes()[..], header.as_bytes(), &data].concat(),
        )
        .unwrap();
        TensorFile::open(&path)
    };
    let refused = |header: &str| {
        let read = write(header.len() as u64, header);
        assert!(read.is_err(), "{header}");
    };
    let whole = format!(
        "{{\"a\":{},\"b\":{}}}",
        tensor("[16]", 0, 32),
        tensor("[4,4]", 32, 64)
    );
    let (_, tensors) = write(whole.len() as u64, &whole).unwrap();
    assert_eq!(tensors[1].1.shape, [4, 4]);
    assert_eq!(tensors[1].1.at, 8 + whole.len() as u64 + 32);
    for length in [0, 1, whole.len() as u64 - 1, 1 << 20, 1 << 40, u64::MAX] {
        assert!(write(length, &whole).is_err(), "{length}");
    }
    refused("[]");
    refused(&format!(
        "{{\"a\":{},\"b\":{}}}",
        tensor("[16]", 0, 32),
        tensor("[16]", 16, 48)
    ));
    refused(&format!(
        "{{\"a\":{}}}",
        tensor("[4294967296,4294967296,2]", 0, 0)
    ));
    refused(&format!("{{\"a\":{}}}", tensor("[16]", 32, 0)));
    refused(&format!("{{\"a\":{}}}", tensor("[17]", 0, 32)));
    refused(&format!("{{\"a\":{}}}", tensor("[-1]", 0, 32)));
    refused(&format!("{{\"a\":{}}}", tensor("[64]", 0, 128)));
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let good = [
        &(whole.len() as u64).to_le_bytes()[..],
        whole.as_bytes(),
        &[0; 64],
    ]
    .concat();
    for _ in 0..3000 {
        let mut bytes = good.clone();
        for _ in 0..1 + rng.next_u32() % 4 {
            let at = rng.next_u32() as usize % (8 + whole.len());
            bytes[at] = rng.next_u32() as u8;
        }
        bytes.truncate(bytes.len() - rng.next_u32() as usize % bytes.len());
        fs::write(&path, &bytes).unwrap();
        if let Ok((_, tensors)) = TensorFile::open(&path) {
            for (_, stored) in tensors {
                assert!(stored.at + stored.bytes <= bytes.len() as u64);
            }
        }
    }
}
