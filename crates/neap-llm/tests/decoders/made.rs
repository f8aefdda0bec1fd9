//! Small models of every architecture.

use neap_testing::{GgufWriter, TensorType};
use std::path::PathBuf;

/// What a small model is like.
#[derive(Clone, Copy)]
pub struct Made {
    pub name: &'static str,
    pub architecture: &'static str,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub inner: usize,
    pub layers: usize,
    pub vocabulary: usize,
    pub types: [TensorType; 3],
    pub tied: bool,
    pub biases: bool,
    pub head_norms: bool,
    pub after_norms: bool,
    pub fused: bool,
    pub window: u32,
    pub factors: bool,
    /// Granite's four scales.
    pub scales: bool,
    /// Experts of each layer, and how many of them a token is given to.
    pub experts: [usize; 2],
    /// Biases of everything, and sinks.
    pub gpt_oss: bool,
    /// `rope.scaling.type`
    pub scaling: &'static str,
    /// Layers with a convolution in place of attention.
    pub convolutions: &'static [usize],
}

/// Positions that a convolution sees.
const TAPS: usize = 3;

const PLAIN: Made = Made {
    name: "llama",
    architecture: "llama",
    width: 64,
    heads: 4,
    kv_heads: 2,
    head_width: 16,
    inner: 96,
    layers: 3,
    vocabulary: 200,
    types: [TensorType::Q8_0, TensorType::Q4_1, TensorType::F16],
    tied: false,
    biases: false,
    head_norms: false,
    after_norms: false,
    fused: false,
    window: 0,
    factors: false,
    scales: false,
    experts: [0, 0],
    gpt_oss: false,
    scaling: "",
    convolutions: &[],
};

pub const ALL: &[Made] = &[
    PLAIN,
    Made {
        name: "llama with factors",
        factors: true,
        tied: true,
        types: [TensorType::Q4_0, TensorType::Q8_0, TensorType::Q4_1],
        ..PLAIN
    },
    Made {
        name: "qwen2",
        architecture: "qwen2",
        biases: true,
        heads: 6,
        kv_heads: 1,
        head_width: 32,
        vocabulary: 77,
        ..PLAIN
    },
    Made {
        name: "qwen2 of K blocks",
        architecture: "qwen2",
        biases: true,
        width: 256,
        heads: 4,
        kv_heads: 2,
        head_width: 64,
        inner: 512,
        layers: 2,
        types: [TensorType::Q4K, TensorType::Q6K, TensorType::Q6K],
        ..PLAIN
    },
    Made {
        name: "qwen3",
        architecture: "qwen3",
        head_norms: true,
        head_width: 32,
        tied: true,
        ..PLAIN
    },
    Made {
        name: "gemma3",
        architecture: "gemma3",
        head_norms: true,
        after_norms: true,
        layers: 7,
        tied: true,
        window: 5,
        ..PLAIN
    },
    Made {
        name: "phi3",
        architecture: "phi3",
        fused: true,
        types: [TensorType::F32, TensorType::F16, TensorType::F32],
        ..PLAIN
    },
    Made {
        name: "smollm3",
        architecture: "smollm3",
        layers: 5,
        ..PLAIN
    },
    Made {
        name: "granite",
        architecture: "granite",
        scales: true,
        ..PLAIN
    },
    Made {
        name: "llama with linear scaling",
        scaling: "linear",
        ..PLAIN
    },
    Made {
        name: "qwen2 with yarn",
        architecture: "qwen2",
        biases: true,
        head_width: 32,
        scaling: "yarn",
        ..PLAIN
    },
    Made {
        name: "phi3 of long contexts",
        architecture: "phi3",
        fused: true,
        head_width: 32,
        scaling: "longrope",
        ..PLAIN
    },
    Made {
        name: "mixtral",
        experts: [8, 2],
        ..PLAIN
    },
    Made {
        name: "qwen3moe",
        architecture: "qwen3moe",
        head_norms: true,
        head_width: 32,
        inner: 32,
        experts: [12, 4],
        types: [TensorType::Q4_0, TensorType::Q8_0, TensorType::F16],
        ..PLAIN
    },
    Made {
        name: "olmoe",
        architecture: "olmoe",
        head_norms: true,
        kv_heads: 4,
        inner: 32,
        experts: [16, 8],
        ..PLAIN
    },
    Made {
        name: "gpt-oss",
        architecture: "gpt-oss",
        biases: true,
        gpt_oss: true,
        layers: 4,
        window: 7,
        scaling: "yarn",
        experts: [5, 2],
        types: [TensorType::Mxfp4, TensorType::Q8_0, TensorType::F16],
        ..PLAIN
    },
    Made {
        name: "lfm2",
        architecture: "lfm2",
        head_norms: true,
        layers: 5,
        tied: true,
        convolutions: &[0, 1, 3],
        ..PLAIN
    },
];

impl Made {
    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.writer().finish()
    }

    /// The model, to be written in one file or several.
    pub fn writer(&self) -> GgufWriter {
        let mut w = GgufWriter::new(self.architecture, 7);
        let key = |name: &str| format!("{}.{name}", self.architecture);
        w.number(&key("block_count"), self.layers as u32)
            .number(&key("context_length"), 512)
            .number(&key("embedding_length"), self.width as u32)
            .number(&key("feed_forward_length"), self.inner as u32)
            .number(&key("attention.head_count"), self.heads as u32)
            .number(&key("attention.key_length"), self.head_width as u32)
            .number(&key("attention.value_length"), self.head_width as u32)
            .number(&key("rope.dimension_count"), self.head_width as u32)
            .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .float(&key("rope.freq_base"), 50_000.0);
        if self.convolutions.is_empty() {
            w.number(&key("attention.head_count_kv"), self.kv_heads as u32);
        } else {
            let of = |layer| match self.convolutions.contains(&layer) {
                true => 0,
                false => self.kv_heads as i32,
            };
            let heads: Vec<i32> = (0..self.layers).map(of).collect();
            w.numbers(&key("attention.head_count_kv"), &heads)
                .number(&key("shortconv.l_cache"), TAPS as u32);
        }
        if self.window > 0 {
            w.number(&key("attention.sliding_window"), self.window);
        }
        if self.scales {
            w.float(&key("embedding_scale"), 3.0)
                .float(&key("residual_scale"), 0.4)
                .float(&key("attention.scale"), 0.11)
                .float(&key("logit_scale"), 2.0);
        }
        if self.experts[0] > 0 {
            w.number(&key("expert_count"), self.experts[0] as u32)
                .number(&key("expert_used_count"), self.experts[1] as u32)
                .number(&key("expert_feed_forward_length"), self.inner as u32);
        }
        if !self.scaling.is_empty() {
            w.text(&key("rope.scaling.type"), self.scaling)
                .number(&key("rope.scaling.original_context_length"), 64);
        }
        match self.scaling {
            "longrope" => w.float(&key("rope.scaling.attn_factor"), 1.2),
            "" => &mut w,
            _ => w.float(&key("rope.scaling.factor"), 4.0),
        };
        self.tensors(&mut w);
        w
    }

    fn tensors(&self, w: &mut GgufWriter) {
        let [first, second, third] = self.types;
        let (query, keys) = (
            self.heads * self.head_width,
            self.kv_heads * self.head_width,
        );
        let (width, inner) = (self.width, self.inner);
        let vector = TensorType::F32;
        w.random(
            "token_embd.weight",
            third,
            &[width, self.vocabulary],
            0.0,
            1.0,
        );
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            w.random(&name("attn_norm.weight"), vector, &[width], 1.0, 0.2);
            let is_convolution = self.convolutions.contains(&layer);
            if is_convolution {
                w.random(
                    &name("shortconv.conv.weight"),
                    vector,
                    &[TAPS, width],
                    0.0,
                    0.8,
                )
                .random(
                    &name("shortconv.in_proj.weight"),
                    first,
                    &[width, 3 * width],
                    0.0,
                    0.4,
                )
                .random(
                    &name("shortconv.out_proj.weight"),
                    second,
                    &[width, width],
                    0.0,
                    0.4,
                );
            } else if self.fused {
                let rows = query + 2 * keys;
                w.random(&name("attn_qkv.weight"), first, &[width, rows], 0.0, 0.3);
            } else {
                w.random(&name("attn_q.weight"), first, &[width, query], 0.0, 0.3)
                    .random(&name("attn_k.weight"), second, &[width, keys], 0.0, 0.3)
                    .random(&name("attn_v.weight"), third, &[width, keys], 0.0, 0.3);
            }
            if self.biases {
                w.random(&name("attn_q.bias"), vector, &[query], 0.0, 0.5)
                    .random(&name("attn_k.bias"), vector, &[keys], 0.0, 0.5)
                    .random(&name("attn_v.bias"), vector, &[keys], 0.0, 0.5);
            }
            if self.head_norms && !is_convolution {
                let [q, k] = match self.architecture {
                    "olmoe" => [query, keys],
                    _ => [self.head_width; 2],
                };
                w.random(&name("attn_q_norm.weight"), vector, &[q], 1.0, 0.2)
                    .random(&name("attn_k_norm.weight"), vector, &[k], 1.0, 0.2);
            }
            if !is_convolution {
                w.random(
                    &name("attn_output.weight"),
                    second,
                    &[query, width],
                    0.0,
                    0.2,
                );
            }
            if self.after_norms {
                w.random(
                    &name("post_attention_norm.weight"),
                    vector,
                    &[width],
                    1.0,
                    0.2,
                )
                .random(&name("post_ffw_norm.weight"), vector, &[width], 1.0, 0.2);
            }
            let before_inner = match self.gpt_oss {
                true => "post_attention_norm.weight",
                false => "ffn_norm.weight",
            };
            w.random(&name(before_inner), vector, &[width], 1.0, 0.2);
            if self.gpt_oss {
                w.random(&name("attn_output.bias"), vector, &[width], 0.0, 0.5)
                    .random(&name("attn_sinks.weight"), vector, &[self.heads], 0.5, 1.0);
            }
            if self.experts[0] > 0 {
                self.mixture(w, layer);
                continue;
            }
            if self.fused {
                w.random(
                    &name("ffn_up.weight"),
                    second,
                    &[width, 2 * inner],
                    0.0,
                    0.3,
                );
            } else {
                w.random(&name("ffn_gate.weight"), first, &[width, inner], 0.0, 0.3)
                    .random(&name("ffn_up.weight"), second, &[width, inner], 0.0, 0.3);
            }
            w.random(&name("ffn_down.weight"), first, &[inner, width], 0.0, 0.2);
        }
        let last_norm = match self.architecture {
            "lfm2" => "token_embd_norm.weight",
            _ => "output_norm.weight",
        };
        w.random(last_norm, vector, &[width], 1.0, 0.2);
        if self.scaling == "longrope" {
            for (name, mean) in [("short", 1.0), ("long", 8.0)] {
                let name = format!("rope_factors_{name}.weight");
                w.random(&name, vector, &[self.head_width / 2], mean, 0.2);
            }
        }
        if self.factors {
            w.random(
                "rope_freqs.weight",
                vector,
                &[self.head_width / 2],
                4.0,
                3.0,
            );
        }
        if !self.tied {
            w.random("output.weight", first, &[width, self.vocabulary], 0.0, 0.3);
        }
    }

    fn mixture(&self, w: &mut GgufWriter, layer: usize) {
        let [first, second, _] = self.types;
        let (width, inner, count) = (self.width, self.inner, self.experts[0]);
        let name = |part: &str| format!("blk.{layer}.ffn_{part}");
        let vector = TensorType::F32;
        w.random(&name("gate_inp.weight"), vector, &[width, count], 0.0, 1.5);
        for (part, k, rows, ty) in [
            ("gate_exps", width, inner, first),
            ("up_exps", width, inner, second),
            ("down_exps", inner, width, first),
        ] {
            let weight = format!("{}.weight", name(part));
            w.random(&weight, ty, &[k, rows, count], 0.0, 0.3);
            if self.gpt_oss {
                let bias = format!("{}.bias", name(part));
                w.random(&bias, vector, &[rows, count], 0.0, 0.5);
            }
        }
        if self.gpt_oss {
            w.random(&name("gate_inp.bias"), vector, &[count], 0.0, 0.5);
        }
    }

    /// Written to a folder.
    pub fn file(&self, folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, self.bytes()).expect("a temporary folder");
        path
    }
}

/// Token ids that look random.
pub fn tokens(made: &Made, count: usize) -> Vec<u32> {
    (0..count)
        .map(|i| ((i * i * 31 + i * 17 + 5) % made.vocabulary) as u32)
        .collect()
}
