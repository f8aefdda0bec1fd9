// Plain to blocked or back: `[images][channels][positions]` and `[images][blocks][positions][16]`.

struct Shape {
    images: u32,
    channels: u32,
    positions: u32,
    to_blocked: u32,
}

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let s = params.shape;
    let blocks = (s.channels + 15u) / 16u;
    let elements = s.images * s.positions * select(s.channels, blocks * 16u, s.to_blocked == 1u);
    for (var i = id.x; i < elements; i += groups.x * 64u) {
        if s.to_blocked == 1u {
            let block = i / (s.positions * 16u);
            let position = i / 16u % s.positions;
            let channel = block % blocks * 16u + i % 16u;
            let origin = ((block / blocks) * s.channels + min(channel, s.channels - 1u)) * s.positions + position;
            y[params.call.y_at + i] = select(0.0, x[params.call.x_at + origin], channel < s.channels);
        } else {
            let plane = i / s.positions;
            let channel = plane % s.channels;
            let origin = ((plane / s.channels * blocks + channel / 16u) * s.positions + i % s.positions) * 16u + channel % 16u;
            y[params.call.y_at + i] = x[params.call.x_at + origin];
        }
    }
}
