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
}

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
];

impl Made {
    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut w = GgufWriter::new(self.architecture, 7);
        let key = |name: &str| format!("{}.{name}", self.architecture);
        w.number(&key("block_count"), self.layers as u32)
            .number(&key("context_length"), 512)
            .number(&key("embedding_length"), self.width as u32)
            .number(&key("feed_forward_length"), self.inner as u32)
            .number(&key("attention.head_count"), self.heads as u32)
            .number(&key("attention.head_count_kv"), self.kv_heads as u32)
            .number(&key("attention.key_length"), self.head_width as u32)
            .number(&key("attention.value_length"), self.head_width as u32)
            .number(&key("rope.dimension_count"), self.head_width as u32)
            .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .float(&key("rope.freq_base"), 50_000.0);
        if self.window > 0 {
            w.number(&key("attention.sliding_window"), self.window);
        }
        if self.scales {
            w.float(&key("embedding_scale"), 3.0)
                .float(&key("residual_scale"), 0.4)
                .float(&key("attention.scale"), 0.11)
                .float(&key("logit_scale"), 2.0);
        }
        self.tensors(&mut w);
        w.finish()
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
            if self.fused {
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
            if self.head_norms {
                w.random(
                    &name("attn_q_norm.weight"),
                    vector,
                    &[self.head_width],
                    1.0,
                    0.2,
                )
                .random(
                    &name("attn_k_norm.weight"),
                    vector,
                    &[self.head_width],
                    1.0,
                    0.2,
                );
            }
            w.random(
                &name("attn_output.weight"),
                second,
                &[query, width],
                0.0,
                0.2,
            );
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
            w.random(&name("ffn_norm.weight"), vector, &[width], 1.0, 0.2);
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
        w.random("output_norm.weight", vector, &[width], 1.0, 0.2);
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
