// Element by element: a binary operator or none, scale and shift, then the activation.
// The result is seen as `[images][planes][run]`; an operand is full, one number, or with `SPREAD` one run for each image or for each
// plane. Only with `MORE` there are curves. Drivers that compute on the processor compute all of what a branch leaves out.

struct Shape {
    elements: u32,
    // From 16 on a function of x: see `curve`. 0: x alone, 1: x + w, 2: x - w, 3: x * w, 4: x / w, 5: minimum, 6: maximum, 7: x * w + r
    does: u32,
    // How each operand is found: 0 full, 1 one number, 2 by channel and image, 3 by channel, 4 where the result goes.
    x_form: u32,
    w_form: u32,
    // Elements of a channel plane, and lanes that it holds of one block: 16, or 1 if plain.
    plane: u32,
    lanes: u32,
    // Channels, in whole blocks if blocked.
    channels: u32,
    // The last elements of x and w. Lanes past the last channel take what is there: they are never read.
    x_last: u32,
    w_last: u32,
}

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read> r: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn place(i: u32, form: u32) -> u32 {
    let s = params.shape;
    if SPREAD && form > 1u {
        let block = i / s.plane;
        let channel = block * s.lanes + i % s.lanes;
        return select(channel % s.channels, channel, form == 2u);
    }
    return select(i, 0u, form == 1u);
}

// With no logarithm of a large number's exponential.
fn softplus(x: f32) -> f32 {
    return max(x, 0.0) + log(1.0 + exp(-abs(x)));
}

fn curve(which: u32, x: f32) -> f32 {
    switch which {
        case 16u: { return sqrt(x); }
        case 17u: { return exp(x); }
        case 18u: { return log(x); }
        case 19u: { return -x; }
        case 20u: { return abs(x); }
        case 21u: { return 1.0 / x; }
        case 22u: { return erf4(vec4<f32>(x)).x; }
        case 23u: { return softplus(x); }
        case 24u: { return floor(x); }
        case 25u: { return ceil(x); }
        case 26u: { return round(x); }
        case 27u: { return sign(x); }
        case 28u: { return sin(x); }
        case 29u: { return cos(x); }
        case 30u: { return x / (1.0 + abs(x)); }
        case 31u: { return x * tanh4(vec4<f32>(softplus(x))).x; }
        default: { return x; }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let s = params.shape;
    for (var i = id.x; i < s.elements; i += groups.x * 64u) {
        let own = y[params.call.y_at + i];
        var value = own;
        if s.x_form != 4u {
            value = x[params.call.x_at + min(place(i, s.x_form), s.x_last)];
        }
        if MORE && s.does >= 16u {
            value = curve(s.does, value);
        } else if s.does != 0u {
            var other = own;
            if s.w_form != 4u {
                other = w[params.call.w_at + min(place(i, s.w_form), s.w_last)];
            }
            switch s.does {
                case 1u: { value += other; }
                case 2u: { value -= other; }
                case 3u: { value *= other; }
                case 4u: { value /= other; }
                case 5u: { value = min(value, other); }
                case 6u: { value = max(value, other); }
                default: { value = value * other + r[params.call.r_at + min(place(i, s.w_form), s.w_last)]; }
            }
        }
        if MORE {
            value = activate(vec4<f32>(value)).x;
        } else {
            value = bound(vec4<f32>(value)).x;
        }
        y[params.call.y_at + i] = value;
    }
}
