// What every kernel begins with. `Shape` is the kernel's own; all words are as `words.rs` writes them.

struct Call {
    // Where operands begin in their bindings, in elements of the binding's type.
    x_at: u32,
    w_at: u32,
    r_at: u32,
    y_at: u32,
    // What is done to a result: see `activate`.
    activation: u32,
    a: f32,
    b: f32,
    c: f32,
    d: f32,
    // 0: none, 1: in the binding `r`, 2: where the result goes.
    residual: u32,
    m_at: u32,
    // How panels hold weights of fewer bits; 0 for f32.
    format: u32,
}

struct Params {
    call: Call,
    shape: Shape,
}

@group(0) @binding(0) var<uniform> params: Params;

// Error at most 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf4(x: vec4<f32>) -> vec4<f32> {
    let size = abs(x);
    let t = 1.0 / (1.0 + 0.3275911 * size);
    let sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    return sign(x) * (1.0 - sum * exp(-size * size));
}

fn sigmoid4(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(-x));
}

// By way of e^-2|x|, which cannot overflow.
fn tanh4(x: vec4<f32>) -> vec4<f32> {
    let e = exp(-2.0 * abs(x));
    return select(sign(x) * (1.0 - e) / (1.0 + e), x, abs(x) < vec4<f32>(1e-4));
}

// Those that only bound a result, applied while it is in registers. Kernels with many results in registers apply the others
// in a loop over what they have stored: unrolled, those take drivers half a minute to compile.
fn bound(x: vec4<f32>) -> vec4<f32> {
    let by = params.call.activation;
    let least = max(x, vec4<f32>(select(params.call.a, 0.0, by == 1u)));
    let both = select(least, min(least, vec4<f32>(params.call.b)), by == 2u);
    // Without bounds, what is infinite or no number stays so.
    return select(x, both, by == 1u || by == 2u);
}

fn is_bound() -> bool {
    return params.call.activation <= 2u;
}

fn activate(x: vec4<f32>) -> vec4<f32> {
    let a = params.call.a;
    let b = params.call.b;
    switch params.call.activation {
        case 1u: { return max(x, vec4<f32>(0.0)); }
        case 2u: { return min(max(x, vec4<f32>(a)), vec4<f32>(b)); }
        case 3u: { return select(x, x * a, x < vec4<f32>(0.0)); }
        case 4u: { return sigmoid4(x); }
        case 5u: { return x * sigmoid4(x); }
        case 6u: { return 0.5 * x * (1.0 + erf4(x * 0.70710678)); }
        case 7u: { return 0.5 * x * (1.0 + tanh4(0.79788456 * (x + 0.044715 * x * x * x))); }
        case 8u: { return clamp(x * a + b, vec4<f32>(0.0), vec4<f32>(1.0)); }
        case 9u: { return x * clamp(x / 6.0 + 0.5, vec4<f32>(0.0), vec4<f32>(1.0)); }
        case 10u: { return tanh4(x); }
        default: { return x; }
    }
}
