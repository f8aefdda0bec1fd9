//! A small checkpoint of Stable Diffusion in both layouts, with the values of a folder of the zoo. Names are listed here once more,
//! scope by scope, and not made by rules, so that a wrong rule is found.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Of a network: the zoo's scope, that of `diffusers`, that of the original layout.
type Scopes = Vec<[String; 3]>;

#[derive(Clone, Debug)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

pub type Tensors = BTreeMap<String, Tensor>;

/// The tensors of a checkpoint, by network and in both layouts.
pub struct Checkpoint {
    pub folder: [(&'static str, Tensors); 3],
    pub original: Tensors,
}

impl Checkpoint {
    /// With the values of `sd_tiny` in `folder`.
    pub fn of(folder: &Path) -> Checkpoint {
        let mut original = Tensors::new();
        let mut read = |networks: &[&str], scopes: &Scopes, before: &str| {
            let mut now = Tensors::new();
            for network in networks {
                let path = folder.join(network).join("model.onnx");
                add(&path, scopes, before, &mut now, &mut original);
            }
            now
        };
        let text = read(&["text_encoder"], &text(), "cond_stage_model.transformer.");
        let unet = read(&["unet"], &unet(), "model.diffusion_model.");
        let vae = read(
            &["vae_decoder", "vae_encoder"],
            &vae(),
            "first_stage_model.",
        );
        Checkpoint {
            folder: [("text_encoder", text), ("unet", unet), ("vae", vae)],
            original,
        }
    }

    pub fn each(&mut self, change: impl Fn(f32) -> f32) {
        let all = (self
            .folder
            .iter_mut()
            .flat_map(|(_, tensors)| tensors.values_mut()))
        .chain(self.original.values_mut());
        for value in all.flat_map(|tensor| &mut tensor.values) {
            *value = change(*value);
        }
    }
}

fn add(path: &Path, scopes: &Scopes, before: &str, now: &mut Tensors, was: &mut Tensors) {
    let mut left: Vec<&[String; 3]> = scopes.iter().collect();
    for (name, tensor) in initializers(path) {
        // Others are no parameters: masks, waves, ones.
        let parameter = name.rsplit_once('.');
        let Some((scope, kind)) = parameter.filter(|(_, kind)| matches!(*kind, "weight" | "bias"))
        else {
            continue;
        };
        let found = scopes.iter().find(|scopes| scopes[0] == scope);
        let [_, new, old] = found.unwrap_or_else(|| panic!("{name} is not listed"));
        left.retain(|scopes| scopes[0] != scope);
        let tensor = stored(scope, tensor);
        let of_vae = new.contains("mid_block.attentions.0.to_") && before.starts_with("first");
        let mut older = tensor.clone();
        if of_vae && kind == "weight" {
            older.shape.extend([1, 1]);
        }
        now.insert(format!("{new}.{kind}"), tensor);
        was.insert(format!("{before}{old}.{kind}"), older);
    }
    // Both halves of the VAE share a list.
    let half = if path.to_string_lossy().contains("vae_decoder") {
        "encoder."
    } else {
        "decoder."
    };
    left.retain(|scopes| {
        before != "first_stage_model."
            || !(scopes[0].starts_with(half) || scopes[0].ends_with("quant_conv"))
    });
    assert!(left.is_empty(), "{}: {left:?}", path.display());
}

/// Layers output by output, scales of channels as a list.
fn stored(scope: &str, tensor: Tensor) -> Tensor {
    let Tensor { shape, values } = tensor;
    match shape[..] {
        [channels, 1, 1] => Tensor {
            shape: vec![channels],
            values,
        },
        [inputs, outputs] if !scope.contains("embedding.") && !scope.ends_with("_embedding") => {
            let turned =
                (0..inputs * outputs).map(|at| values[at % inputs * outputs + at / inputs]);
            Tensor {
                shape: vec![outputs, inputs],
                values: turned.collect(),
            }
        }
        [inputs, outputs] if scope.contains("time_embedding") => stored(
            "layer",
            Tensor {
                shape: vec![inputs, outputs],
                values,
            },
        ),
        _ => Tensor { shape, values },
    }
}

fn row(zoo: &str, now: &str, was: &str) -> [String; 3] {
    [zoo, now, was].map(String::from)
}

fn same(now: &str, was: &str) -> [String; 3] {
    row(now, now, was)
}

fn text() -> Scopes {
    let begin = "text_model.embeddings";
    let mut rows = vec![];
    let mut add = |zoo: String, now: String| rows.push(row(&zoo, &now, &now));
    for table in ["token_embedding", "position_embedding"] {
        add(table.into(), format!("{begin}.{table}"));
    }
    add(
        "text_model.final_layer_norm".into(),
        "text_model.final_layer_norm".into(),
    );
    for layer in 0..2 {
        let (zoo, now) = (
            format!("text_model.layers.{layer}"),
            format!("text_model.encoder.layers.{layer}"),
        );
        for (of_zoo, today) in [
            ("layer_norm1", "layer_norm1"),
            ("layer_norm2", "layer_norm2"),
            ("mlp.fc1", "mlp.fc1"),
            ("mlp.fc2", "mlp.fc2"),
            ("self_attn.to_q", "self_attn.q_proj"),
            ("self_attn.to_k", "self_attn.k_proj"),
            ("self_attn.to_v", "self_attn.v_proj"),
            ("self_attn.to_out", "self_attn.out_proj"),
        ] {
            add(format!("{zoo}.{of_zoo}"), format!("{now}.{today}"));
        }
    }
    rows
}

fn unet() -> Scopes {
    let mut rows = vec![
        same("conv_in", "input_blocks.0.0"),
        same("time_embedding.linear_1", "time_embed.0"),
        same("time_embedding.linear_2", "time_embed.2"),
        same("conv_norm_out", "out.0"),
        same("conv_out", "out.2"),
        same("down_blocks.0.downsamplers.0.conv", "input_blocks.2.0.op"),
        same("up_blocks.0.upsamplers.0.conv", "output_blocks.1.2.conv"),
    ];
    for (now, was, has_shortcut) in [
        ("down_blocks.0.resnets.0", "input_blocks.1.0", false),
        ("down_blocks.1.resnets.0", "input_blocks.3.0", true),
        ("mid_block.resnets.0", "middle_block.0", false),
        ("mid_block.resnets.1", "middle_block.2", false),
        ("up_blocks.0.resnets.0", "output_blocks.0.0", true),
        ("up_blocks.0.resnets.1", "output_blocks.1.0", true),
        ("up_blocks.1.resnets.0", "output_blocks.2.0", true),
        ("up_blocks.1.resnets.1", "output_blocks.3.0", true),
    ] {
        for (inner, older) in [
            ("norm1", "in_layers.0"),
            ("conv1", "in_layers.2"),
            ("time_emb_proj", "emb_layers.1"),
            ("norm2", "out_layers.0"),
            ("conv2", "out_layers.3"),
        ] {
            rows.push(same(&format!("{now}.{inner}"), &format!("{was}.{older}")));
        }
        if has_shortcut {
            let (now, was) = (
                format!("{now}.conv_shortcut"),
                format!("{was}.skip_connection"),
            );
            rows.push(same(&now, &was));
        }
    }
    for (now, was) in [
        ("down_blocks.0.attentions.0", "input_blocks.1.1"),
        ("down_blocks.1.attentions.0", "input_blocks.3.1"),
        ("mid_block.attentions.0", "middle_block.1"),
        ("up_blocks.0.attentions.0", "output_blocks.0.1"),
        ("up_blocks.0.attentions.1", "output_blocks.1.1"),
        ("up_blocks.1.attentions.0", "output_blocks.2.1"),
        ("up_blocks.1.attentions.1", "output_blocks.3.1"),
    ] {
        for inner in ["norm", "proj_in", "proj_out"] {
            rows.push(same(&format!("{now}.{inner}"), &format!("{was}.{inner}")));
        }
        for inner in [
            "norm1",
            "norm2",
            "norm3",
            "attn1.to_q",
            "attn1.to_k",
            "attn1.to_v",
            "attn2.to_q",
            "attn2.to_k",
            "attn2.to_v",
            "ff.net.0.proj",
            "ff.net.2",
        ] {
            let inner = format!("transformer_blocks.0.{inner}");
            rows.push(same(&format!("{now}.{inner}"), &format!("{was}.{inner}")));
        }
        for attention in ["attn1", "attn2"] {
            let inner = format!("transformer_blocks.0.{attention}.to_out");
            rows.push(row(
                &format!("{now}.{inner}"),
                &format!("{now}.{inner}.0"),
                &format!("{was}.{inner}.0"),
            ));
        }
    }
    rows
}

fn vae() -> Scopes {
    let mut rows = vec![
        same("quant_conv", "quant_conv"),
        same("post_quant_conv", "post_quant_conv"),
    ];
    for half in ["encoder", "decoder"] {
        for (now, was) in [
            ("conv_in", "conv_in"),
            ("conv_out", "conv_out"),
            ("conv_norm_out", "norm_out"),
            ("mid_block.attentions.0.group_norm", "mid.attn_1.norm"),
            ("mid_block.attentions.0.to_q", "mid.attn_1.q"),
            ("mid_block.attentions.0.to_k", "mid.attn_1.k"),
            ("mid_block.attentions.0.to_v", "mid.attn_1.v"),
        ] {
            rows.push(same(&format!("{half}.{now}"), &format!("{half}.{was}")));
        }
        rows.push(row(
            &format!("{half}.mid_block.attentions.0.to_out"),
            &format!("{half}.mid_block.attentions.0.to_out.0"),
            &format!("{half}.mid.attn_1.proj_out"),
        ));
    }
    // Channels change where the shortcut is.
    for (now, was, has_shortcut) in [
        (
            "encoder.down_blocks.0.resnets.0",
            "encoder.down.0.block.0",
            false,
        ),
        (
            "encoder.down_blocks.1.resnets.0",
            "encoder.down.1.block.0",
            true,
        ),
        (
            "encoder.down_blocks.2.resnets.0",
            "encoder.down.2.block.0",
            false,
        ),
        (
            "encoder.down_blocks.3.resnets.0",
            "encoder.down.3.block.0",
            true,
        ),
        ("encoder.mid_block.resnets.0", "encoder.mid.block_1", false),
        ("encoder.mid_block.resnets.1", "encoder.mid.block_2", false),
        ("decoder.mid_block.resnets.0", "decoder.mid.block_1", false),
        ("decoder.mid_block.resnets.1", "decoder.mid.block_2", false),
        (
            "decoder.up_blocks.0.resnets.0",
            "decoder.up.3.block.0",
            false,
        ),
        (
            "decoder.up_blocks.1.resnets.0",
            "decoder.up.2.block.0",
            true,
        ),
        (
            "decoder.up_blocks.2.resnets.0",
            "decoder.up.1.block.0",
            false,
        ),
        (
            "decoder.up_blocks.3.resnets.0",
            "decoder.up.0.block.0",
            true,
        ),
    ] {
        for inner in ["norm1", "conv1", "norm2", "conv2"] {
            rows.push(same(&format!("{now}.{inner}"), &format!("{was}.{inner}")));
        }
        if has_shortcut {
            let (now, was) = (
                format!("{now}.conv_shortcut"),
                format!("{was}.nin_shortcut"),
            );
            rows.push(same(&now, &was));
        }
    }
    for (now, was) in [
        (
            "encoder.down_blocks.0.downsamplers.0.conv",
            "encoder.down.0.downsample.conv",
        ),
        (
            "encoder.down_blocks.1.downsamplers.0.conv",
            "encoder.down.1.downsample.conv",
        ),
        (
            "encoder.down_blocks.2.downsamplers.0.conv",
            "encoder.down.2.downsample.conv",
        ),
        (
            "decoder.up_blocks.0.upsamplers.0.conv",
            "decoder.up.3.upsample.conv",
        ),
        (
            "decoder.up_blocks.1.upsamplers.0.conv",
            "decoder.up.2.upsample.conv",
        ),
        (
            "decoder.up_blocks.2.upsamplers.0.conv",
            "decoder.up.1.upsample.conv",
        ),
    ] {
        rows.push(same(now, was));
    }
    rows
}

/// The floats among a model's weights. All of them are in the model.
fn initializers(path: &Path) -> Tensors {
    let model = fs::read(path).unwrap();
    let graph = fields(&model).find(|(field, _, _)| *field == 7).unwrap().2;
    let tensors = fields(graph).filter(|(field, _, _)| *field == 5);
    let tensors = tensors.filter_map(|(_, _, tensor)| {
        let shape = fields(tensor).filter(|(field, _, _)| *field == 1);
        let text = |wanted| fields(tensor).find(|(field, _, _)| *field == wanted);
        let (_, dtype, _) = text(2)?;
        let values = text(9)?.2.as_chunks::<4>().0.iter();
        let tensor = Tensor {
            shape: shape.map(|(_, size, _)| size as usize).collect(),
            values: values.map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        };
        let name = String::from_utf8(text(8)?.2.to_vec()).ok()?;
        (dtype == 1).then_some((name, tensor))
    });
    tensors.collect()
}

/// Of a message: each field's number, its value if that is a number, its bytes if it has any.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, u64, &[u8])> {
    fn varint(from: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (&byte, rest) = from.split_first().unwrap();
            *from = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    std::iter::from_fn(move || {
        if message.is_empty() {
            return None;
        }
        let tag = varint(&mut message);
        let (mut value, mut bytes): (u64, &[u8]) = (0, &[]);
        match tag & 7 {
            0 => value = varint(&mut message),
            kind => {
                let length = if kind == 5 {
                    4
                } else {
                    varint(&mut message) as usize
                };
                (bytes, message) = message.split_at(length);
            }
        }
        Some((tag >> 3, value, bytes))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum As {
    F32,
    F16,
    Bf16,
}

impl As {
    fn name(self) -> &'static str {
        match self {
            As::F32 => "F32",
            As::F16 => "F16",
            As::Bf16 => "BF16",
        }
    }

    fn bytes(self, value: f32) -> Vec<u8> {
        match self {
            As::F32 => value.to_le_bytes().to_vec(),
            As::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            As::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        }
    }

    pub fn rounded(self, value: f32) -> f32 {
        match self {
            As::F32 => value,
            As::F16 => half::f16::from_f32(value).to_f32(),
            As::Bf16 => half::bf16::from_f32(value).to_f32(),
        }
    }
}

/// A file of safetensors.
pub fn safetensors<'t>(
    tensors: impl IntoIterator<Item = (&'t String, &'t Tensor)>,
    kept: As,
) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        let start = data.len();
        data.extend(tensor.values.iter().flat_map(|&value| kept.bytes(value)));
        let entry = serde_json::json!({
            "dtype": kept.name(), "shape": tensor.shape, "data_offsets": [start, data.len()],
        });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
