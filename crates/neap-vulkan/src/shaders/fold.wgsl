// Reductions: one workgroup for each result, whose invocations share what is folded among them.

struct Shape {
    results: u32,
    folded: u32,
    // 0: sum, 1: mean, 2: maximum, 3: minimum, 4: sum of squares, 5: of sizes, 6: root of squares, 7: logarithm of the sum
    kind: u32,
    spare: u32,
    // Of three axes each, the first outermost.
    kept_dims: vec4<u32>,
    kept_steps: vec4<u32>,
    folded_dims: vec4<u32>,
    folded_steps: vec4<u32>,
}

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

var<workgroup> parts: array<f32, 64>;

fn place(i: u32, dims: vec4<u32>, steps: vec4<u32>) -> u32 {
    let inner = i % dims.z;
    let middle = i / dims.z % dims.y;
    let outer = i / dims.z / dims.y;
    return outer * steps.x + middle * steps.y + inner * steps.z;
}

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let s = params.shape;
    for (var at = group.x; at < s.results; at += groups.x) {
        let first = params.call.x_at + place(at, s.kept_dims, s.kept_steps);
        var own = 0.0;
        if s.kind == 2u || s.kind == 3u {
            own = x[first];
        }
        for (var i = local; i < s.folded; i += 64u) {
            let value = x[first + place(i, s.folded_dims, s.folded_steps)];
            switch s.kind {
                case 2u: { own = max(own, value); }
                case 3u: { own = min(own, value); }
                case 4u, 6u: { own += value * value; }
                case 5u: { own += abs(value); }
                default: { own += value; }
            }
        }
        workgroupBarrier();
        parts[local] = own;
        workgroupBarrier();
        for (var apart = 32u; apart > 0u; apart /= 2u) {
            if local < apart {
                let other = parts[local + apart];
                switch s.kind {
                    case 2u: { parts[local] = max(parts[local], other); }
                    case 3u: { parts[local] = min(parts[local], other); }
                    default: { parts[local] += other; }
                }
            }
            workgroupBarrier();
        }
        if local == 0u {
            var result = parts[0];
            switch s.kind {
                case 1u: { result /= f32(s.folded); }
                case 6u: { result = sqrt(result); }
                case 7u: { result = log(result); }
                default: {}
            }
            y[params.call.y_at + at] = result;
        }
    }
}
