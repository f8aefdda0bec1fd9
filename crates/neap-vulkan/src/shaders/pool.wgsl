// Pooling, blocked in and out; a global one is a window over all. One invocation: four neighbouring channels at one output.
// `c_in` counts planes of 16 channels, of all images.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let s = params.shape;
    let positions = s.out_h * s.out_w;
    let position = id.x / 4u;
    let j = id.x % 4u;
    if position >= positions {
        return;
    }
    let x_first = params.call.x_at + id.y * s.in_h * s.in_w * 4u + j;
    let first_row = i32(position / s.out_w * s.stride_h) - i32(s.pad_h);
    let first_col = i32(position % s.out_w * s.stride_w) - i32(s.pad_w);
    var value = select(vec4<f32>(0.0), vec4<f32>(-3.402823466e38), s.kind == 0u);
    var count = 0u;
    var padded = 0u;
    // Loops look whether to go on where they end: see `conv_lanes.wgsl`.
    var ky = 0u;
    loop {
        let row = first_row + i32(ky * s.dilation_h);
        var kx = 0u;
        loop {
            let col = first_col + i32(kx * s.dilation_w);
            let is_counted = row + i32(s.pad_h) < i32(s.padded_h) && col + i32(s.pad_w) < i32(s.padded_w);
            padded += select(0u, 1u, is_counted);
            if row >= 0 && row < i32(s.in_h) && col >= 0 && col < i32(s.in_w) {
                let input = x[x_first + u32(row * i32(s.in_w) + col) * 4u];
                value = select(value + input, max(value, input), s.kind == 0u);
                count++;
            }
            continuing {
                kx++;
                break if kx >= s.kernel_w;
            }
        }
        continuing {
            ky++;
            break if ky >= s.kernel_h;
        }
    }
    if s.kind == 1u {
        value /= f32(max(count, 1u));
    } else if s.kind == 2u {
        value /= f32(max(padded, 1u));
    }
    y[params.call.y_at + (id.y * positions + position) * 4u + j] = value;
}
