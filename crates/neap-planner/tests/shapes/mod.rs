//! Workloads shaped like real networks (sizes of weights and activations, order of use), and random ones.
#![allow(dead_code)]

pub mod random;

use neap_plan::{BufferSpec, Extent, PanelSpec, RowTable, StepRange, StepSpec, Workload};

/// Builds a workload step by step; buffers live from the step that makes them to their last use.
#[derive(Default)]
pub struct Net {
    pub w: Workload,
    file: u64,
}

/// A feature map: buffer, channels, height = width.
#[derive(Clone, Copy)]
pub struct Map {
    pub buffer: usize,
    pub channels: u64,
    pub side: u64,
}

impl Net {
    pub fn input(&mut self, bytes: u64) -> usize {
        self.buffer("input", bytes)
    }

    fn buffer(&mut self, name: &str, bytes: u64) -> usize {
        let at = self.w.steps.len() as u32;
        let live = StepRange::new(at, at + 1);
        self.w.buffers.push(BufferSpec {
            name: name.into(),
            bytes,
            align: 64,
            live,
            kept: false,
        });
        self.w.buffers.len() - 1
    }

    fn touch(&mut self, buffer: usize) {
        self.w.buffers[buffer].live.end = self.w.steps.len() as u32 + 1;
    }

    /// A step with `outputs` output channels of `k` inputs each, as panels of 16.
    pub fn weighted(
        &mut self,
        name: &str,
        outputs: u64,
        k: u64,
        positions: u64,
        workspace_bytes: u64,
    ) {
        let panels = outputs.div_ceil(16) as u32;
        let panel_bytes = (16 + 16 * k) * 4;
        let spec = PanelSpec {
            file_offset: self.file,
            panel_bytes,
            panels,
            granule: 4.min(panels),
        };
        self.file = (self.file + panel_bytes * u64::from(panels)).next_multiple_of(64);
        self.w.steps.push(StepSpec {
            name: name.into(),
            workspace_bytes,
            flops: 2 * outputs * k * positions,
            touched_bytes: panel_bytes * u64::from(panels) + positions * outputs * 4,
            panels: Some(spec),
            ..StepSpec::default()
        });
    }

    pub fn plain(&mut self, name: &str, touched_bytes: u64, workspace_bytes: u64) {
        let flops = touched_bytes / 4;
        self.w.steps.push(StepSpec {
            name: name.into(),
            workspace_bytes,
            flops,
            touched_bytes,
            ..StepSpec::default()
        });
    }

    pub fn conv(&mut self, name: &str, x: Map, channels: u64, kernel: u64, stride: u64) -> Map {
        let side = x.side / stride;
        let out = self.buffer(name, channels.next_multiple_of(16) * side * side * 4);
        self.touch(x.buffer);
        self.weighted(
            name,
            channels,
            x.channels * kernel * kernel,
            side * side,
            128 << 10,
        );
        Map {
            buffer: out,
            channels,
            side,
        }
    }

    /// Adds into `onto`, which becomes the result.
    pub fn conv_onto(&mut self, name: &str, x: Map, onto: Map) -> Map {
        self.touch(x.buffer);
        self.touch(onto.buffer);
        self.weighted(
            name,
            onto.channels,
            x.channels,
            onto.side * onto.side,
            64 << 10,
        );
        onto
    }

    pub fn pool(&mut self, x: Map, stride: u64) -> Map {
        let side = x.side / stride;
        let bytes = x.channels * side * side * 4;
        let out = self.buffer("pool", bytes);
        self.touch(x.buffer);
        self.plain("pool", bytes * stride * stride, 0);
        Map {
            buffer: out,
            side,
            ..x
        }
    }

    pub fn linear(&mut self, name: &str, x: usize, rows: u64, k: u64, outputs: u64) -> usize {
        let out = self.buffer(name, rows * outputs * 4);
        self.touch(x);
        self.weighted(name, outputs, k, rows, 0);
        out
    }

    pub fn extent(&mut self, bytes: u64) {
        let step = self.w.steps.last_mut().unwrap();
        step.extents.push(Extent {
            file_offset: self.file,
            bytes,
        });
        self.file = (self.file + bytes).next_multiple_of(64);
    }

    pub fn table(&mut self, bytes: u64, rows_workspace_bytes: u64) {
        let step = self.w.steps.last_mut().unwrap();
        step.rows = Some(RowTable {
            file_offset: self.file,
            bytes,
            rows_workspace_bytes,
        });
        self.file = (self.file + bytes).next_multiple_of(64);
    }

    pub fn finish(mut self, output: usize, digest: &str) -> Workload {
        self.w.buffers[output].live.end = self.w.steps.len() as u32;
        self.w.digest = digest.into();
        self.w
    }
}

/// 152 layers for `[3, 8, 36, 3]`, 50 for `[3, 4, 6, 3]`.
pub fn resnet(blocks: [u64; 4]) -> Workload {
    let mut net = Net::default();
    let input = Map {
        buffer: net.input(3 * 224 * 224 * 4),
        channels: 3,
        side: 224,
    };
    let mut x = net.conv("stem", input, 64, 7, 2);
    x = net.pool(x, 2);
    for (stage, &count) in blocks.iter().enumerate() {
        let width = 64 << stage;
        for b in 0..count {
            let stride = if b == 0 && stage > 0 { 2 } else { 1 };
            let a = net.conv("a", x, width, 1, 1);
            let c = net.conv("b", a, width, 3, stride);
            let short = if b == 0 {
                net.conv("down", x, 4 * width, 1, stride)
            } else {
                x
            };
            x = net.conv_onto("c", c, short);
        }
    }
    let pooled = net.pool(x, 7);
    let out = net.linear("fc", pooled.buffer, 1, 2048, 1000);
    net.finish(
        out,
        if blocks[2] > 20 {
            "resnet152"
        } else {
            "resnet50"
        },
    )
}

pub fn vgg19() -> Workload {
    let mut net = Net::default();
    let mut x = Map {
        buffer: net.input(3 * 224 * 224 * 4),
        channels: 3,
        side: 224,
    };
    for (channels, count) in [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)] {
        for _ in 0..count {
            x = net.conv("conv", x, channels, 3, 1);
        }
        x = net.pool(x, 2);
    }
    let mut v = x.buffer;
    for (k, n) in [(25088, 4096), (4096, 4096), (4096, 1000)] {
        v = net.linear("fc", v, 1, k, n);
    }
    net.finish(v, "vgg19")
}

pub fn gpt2(lm_head: bool) -> Workload {
    let (rows, d) = (128u64, 768u64);
    let mut net = Net::default();
    let ids = net.input(rows * 8);
    let mut x = net.buffer("x", rows * d * 4);
    net.touch(ids);
    net.plain("embed", rows * d * 8, 0);
    net.table(50257 * d * 4, rows * 8192);
    net.extent(1024 * d * 4);
    for _ in 0..12 {
        let normed = net.buffer("ln1", rows * d * 4);
        net.touch(x);
        net.plain("ln1", rows * d * 8, 0);
        let qkv = net.linear("qkv", normed, rows, d, 3 * d);
        let heads = net.buffer("attention", rows * d * 4);
        net.touch(qkv);
        net.plain("attention", rows * d * 16, 2 * rows * rows * 4);
        let projected = net.linear("proj", heads, rows, d, d);
        net.touch(x);
        net.touch(projected);
        net.plain("add+ln2", rows * d * 12, 0);
        let wide = net.linear("fc1", projected, rows, d, 4 * d);
        let narrow = net.linear("fc2", wide, rows, 4 * d, d);
        net.touch(x);
        net.touch(narrow);
        net.plain("add", rows * d * 12, 0);
        x = narrow;
    }
    if lm_head {
        x = net.linear("lm_head", x, rows, d, 50257);
    }
    net.finish(x, if lm_head { "gpt2_lm" } else { "gpt2" })
}

/// Dense blocks: each layer adds 32 channels to one growing buffer.
pub fn densenet121() -> Workload {
    let mut net = Net::default();
    let input = Map {
        buffer: net.input(3 * 224 * 224 * 4),
        channels: 3,
        side: 224,
    };
    let mut x = net.conv("stem", input, 64, 7, 2);
    x = net.pool(x, 2);
    for (i, count) in [6u64, 12, 24, 16].into_iter().enumerate() {
        let all = net.buffer("dense", (x.channels + 32 * count) * x.side * x.side * 4);
        net.touch(x.buffer);
        net.plain("copy", x.channels * x.side * x.side * 8, 0);
        for layer in 0..count {
            let seen = Map {
                buffer: all,
                channels: x.channels + 32 * layer,
                side: x.side,
            };
            let narrow = net.conv("bottleneck", seen, 128, 1, 1);
            net.touch(all);
            net.weighted("grow", 32, 128 * 9, x.side * x.side, 64 << 10);
            net.touch(narrow.buffer);
            let end = net.w.steps.len() as u32;
            net.w.buffers[all].live.end = end;
            net.w.buffers[narrow.buffer].live.end = end;
        }
        let grown = Map {
            buffer: all,
            channels: x.channels + 32 * count,
            side: x.side,
        };
        x = if i < 3 {
            let half = net.conv("transition", grown, grown.channels / 2, 1, 1);
            net.pool(half, 2)
        } else {
            net.pool(grown, 7)
        };
    }
    let out = net.linear("fc", x.buffer, 1, 1024, 1000);
    net.finish(out, "densenet121")
}

/// Depthwise (whole weights, tiny) and pointwise convolutions.
pub fn mobilenet_v2() -> Workload {
    let mut net = Net::default();
    let input = Map {
        buffer: net.input(3 * 224 * 224 * 4),
        channels: 3,
        side: 224,
    };
    let mut x = net.conv("stem", input, 32, 3, 2);
    for (expand, channels, count, stride) in [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ] {
        for b in 0..count {
            let wide = net.conv("expand", x, x.channels * expand, 1, 1);
            let s = if b == 0 { stride } else { 1 };
            let side = wide.side / s;
            let out = net.buffer("depthwise", wide.channels * side * side * 4);
            net.touch(wide.buffer);
            net.plain("depthwise", wide.channels * side * side * 4, 0);
            net.extent((16 + 16 * 9) * 4 * wide.channels / 16);
            let deep = Map {
                buffer: out,
                side,
                ..wide
            };
            x = net.conv("project", deep, channels, 1, 1);
        }
    }
    x = net.conv("head", x, 1280, 1, 1);
    let pooled = net.pool(x, 7);
    let out = net.linear("fc", pooled.buffer, 1, 1280, 1000);
    net.finish(out, "mobilenet_v2")
}

pub fn all() -> Vec<(&'static str, Workload)> {
    vec![
        ("resnet50", resnet([3, 4, 6, 3])),
        ("resnet152", resnet([3, 8, 36, 3])),
        ("vgg19", vgg19()),
        ("gpt2", gpt2(false)),
        ("gpt2_lm", gpt2(true)),
        ("densenet121", densenet121()),
        ("mobilenet_v2", mobilenet_v2()),
    ]
}
