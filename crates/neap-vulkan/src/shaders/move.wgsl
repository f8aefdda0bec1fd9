// Words to where strides say: transposes, slices, repeats, fills. An axis of a word is one of its own.

struct Shape {
    total: u32,
    x_first: u32,
    y_first: u32,
    // 0: copy, 1: write zeros
    fills: u32,
    // Of six axes, the first outermost.
    dims: array<vec4<u32>, 2>,
    x_steps: array<vec4<i32>, 2>,
    y_steps: array<vec4<i32>, 2>,
}

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let s = params.shape;
    for (var i = id.x; i < s.total; i += groups.x * 64u) {
        var rest = i;
        var from_at = i32(s.x_first);
        var to_at = i32(s.y_first);
        for (var back = 0u; back < 6u; back++) {
            let axis = 5u - back;
            let size = params.shape.dims[axis / 4u][axis % 4u];
            let at = i32(rest % size);
            rest /= size;
            from_at += at * params.shape.x_steps[axis / 4u][axis % 4u];
            to_at += at * params.shape.y_steps[axis / 4u][axis % 4u];
        }
        var word = 0u;
        if s.fills == 0u {
            word = x[params.call.x_at + u32(from_at)];
        }
        y[params.call.y_at + u32(to_at)] = word;
    }
}
