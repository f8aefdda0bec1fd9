// Words in runs: of each of `outer` runs `run` words, runs as far apart as their tensors say.

struct Shape {
    outer: u32,
    run: u32,
    x_stride: u32,
    y_stride: u32,
}

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let s = params.shape;
    for (var i = id.x; i < s.outer * s.run; i += groups.x * 64u) {
        let at = vec2<u32>(i / s.run, i % s.run);
        y[params.call.y_at + at.x * s.y_stride + at.y] = x[params.call.x_at + at.x * s.x_stride + at.y];
    }
}
