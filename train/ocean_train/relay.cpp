// The two serial loops of Ocean BPTT on the CPU: what ocean_train/bptt.py does with tensors, row blocks of
// a batch at a time, with matrices packed once per call and everything between two products fused.
//
// Rows of a batch never meet, so each thread carries its own rows through all T steps; a row's arithmetic
// does not depend on how rows are grouped, so results do not depend on the number of threads either
// (the sums of bias gradients do). Plain C interface, no PyTorch headers: it compiles in seconds.
//
// Axes: B batch, T steps, D width, L layers, H heads, K = D/H, F = 4D. Per-step tensors are (T, B, ·).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using i64 = std::int64_t;

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#else
constexpr int BYTES = 32;
#endif
constexpr int ROWS = 6;        // rows of a register tile: 6 x 2 vectors of sums keep both FMA units busy
constexpr i64 BLOCK = 48;      // most rows carried through the steps together
constexpr double EPS = 1e-5;   // LayerNorm

template <class S> struct Lanes;
template <> struct Lanes<float> {
    typedef float V __attribute__((vector_size(BYTES), aligned(4), may_alias));
    typedef std::int32_t I __attribute__((vector_size(BYTES), aligned(4), may_alias));
};
template <> struct Lanes<double> {
    typedef double V __attribute__((vector_size(BYTES), aligned(8), may_alias));
    typedef std::int64_t I __attribute__((vector_size(BYTES), aligned(8), may_alias));
};
template <class S> using Vec = typename Lanes<S>::V;
template <class S> constexpr int W = BYTES / sizeof(S);
template <class S> constexpr int NR = 2 * W<S>;  // columns of a packed panel

template <class S> inline Vec<S> load(const S* p) { return *reinterpret_cast<const Vec<S>*>(p); }
template <class S> inline void store(S* p, Vec<S> v) { *reinterpret_cast<Vec<S>*>(p) = v; }
template <class S> inline Vec<S> splat(S s) { return s - Vec<S>{}; }

template <class S> i64 panels(i64 n) { return (n + NR<S> - 1) / NR<S>; }

// What the Python side fills in; every pointer is to contiguous memory.
template <class S> struct Args {
    i64 B, T, D, L, H, threads, blocks, keep;  // keep: whether every step's intermediates are kept
    const S *wq, *wkv, *wo, *w1, *w2;          // packed for the forward products, L of each
    const S *w2t, *w1t, *wot, *wqkvt;          // packed for the backward products
    const S *bqkv, *b1, *b2;                   // (L, 3D), (L, F), (L, D)
    const S *x0, *qkv0, *ocean0;               // (T, B, D), (T, B, 3D), (B, D)
    const std::uint8_t *reset, *valid;         // (T, B) or null; backward: reset also marks cut gradients
    S *hat1, *inv1, *qkv;                      // layers 1.. L-1: (L-1, T, B, D), (L-1, T, B), (L-1, T, B, 3D)
    S *kvo, *a, *y;                            // (T, B, L, 2D), (L, T, B, H), (L, T, B, D)
    S *hat2, *inv2, *g, *slope;                // (L, T, B, D), (L, T, B), (L, T, B, F) twice
    S *ohat, *oinv;                            // (T, B, D), (T, B)
    S* oceans;                                 // (B, T, D)
    // backward only; dqkv, dkvo and dh overwrite qkv, kvo and slope
    const S* d_oceans;                         // (B, T, D)
    S *dqkv0, *dmid, *dout;                    // (T, B, 3D) = qkv0, (L, T, B, D) twice
    S *dx0, *d_ocean0;                         // (T, B, D), (B, D)
    S* sums;                                   // (blocks, L 8D + D): column sums of dqkv (+ dkvo), dh, dout; dλ
    // leaky integration, or null: o <- decay o + rest x, decay = λ and rest = 1 - λ, (D)
    const S *decay, *rest;
    S* change;                                 // (T, B, D), o - x before the step's end; null where λ is not learned
};

// ---------------------------------------------------------------- matrix products on packed panels

// One register tile: R rows of A times one panel (k x NR), each finished row handed to `done`.
template <class S, int R, class Done>
inline void tile(const S* __restrict A, i64 lda, const S* __restrict panel, i64 k, i64 row, const Done& done) {
    Vec<S> c0[R] = {}, c1[R] = {};
    for (i64 i = 0; i < k; ++i) {
        const Vec<S> b0 = load(panel + i * NR<S>), b1 = load(panel + i * NR<S> + W<S>);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            const S s = A[(row + r) * lda + i];
            c0[r] += s * b0;
            c1[r] += s * b1;
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) done(row + r, c0[r], c1[r]);
}

// A (M x k, row stride lda) times a packed (k x n) matrix. `done(row, column, count, c0, c1)` gets NR sums at
// a time, the first `count` of which exist. Panels lie `stride` apart.
template <class S, class Done>
void product(i64 M, i64 k, i64 n, const S* A, i64 lda, const S* packed, i64 stride, const Done& done) {
    const i64 tiles = (M + ROWS - 1) / ROWS;
    for (i64 j = 0; j < n; j += NR<S>, packed += stride) {
        const i64 count = std::min<i64>(NR<S>, n - j);
        auto at = [&](i64 row, Vec<S> c0, Vec<S> c1) { done(row, j, count, c0, c1); };
        for (i64 i = 0; i < tiles; ++i) {
            const i64 row = M * i / tiles;
            switch (M * (i + 1) / tiles - row) {  // nearly equal tiles: 32 rows are 5, 5, 6, 5, 5, 6
                case 1: tile<S, 1>(A, lda, packed, k, row, at); break;
                case 2: tile<S, 2>(A, lda, packed, k, row, at); break;
                case 3: tile<S, 3>(A, lda, packed, k, row, at); break;
                case 4: tile<S, 4>(A, lda, packed, k, row, at); break;
                case 5: tile<S, 5>(A, lda, packed, k, row, at); break;
                default: tile<S, 6>(A, lda, packed, k, row, at);
            }
        }
    }
}

template <class S> inline void get(const S* p, i64 count, Vec<S>& v0, Vec<S>& v1) {
    if (count == NR<S>) {
        v0 = load(p);
        v1 = load(p + W<S>);
    } else {
        S part[NR<S>] = {};
        std::memcpy(part, p, count * sizeof(S));
        v0 = load(part);
        v1 = load(part + W<S>);
    }
}

template <class S> inline void put(S* p, i64 count, Vec<S> v0, Vec<S> v1) {
    if (count == NR<S>) {
        store(p, v0);
        store(p + W<S>, v1);
    } else {
        S part[NR<S>];
        store(part, v0);
        store(part + W<S>, v1);
        std::memcpy(p, part, count * sizeof(S));
    }
}

// C (row stride ldc) = [C +] A B [+ bias]
template <class S, bool ADD>
void multiply(i64 M, i64 k, i64 n, const S* A, i64 lda, const S* packed, i64 stride, S* C, i64 ldc, const S* bias) {
    product<S>(M, k, n, A, lda, packed, stride, [=](i64 row, i64 j, i64 count, Vec<S> c0, Vec<S> c1) {
        S* c = C + row * ldc + j;
        Vec<S> u, v;
        if (bias) {
            get(bias + j, count, u, v);
            c0 += u;
            c1 += v;
        }
        if (ADD) {
            get(c, count, u, v);
            c0 += u;
            c1 += v;
        }
        put(c, count, c0, c1);
    });
}

// ---------------------------------------------------------------- what lies between the products

inline Vec<float> exponential(Vec<float> x) {  // for x <= 0; relative error below 2e-7
    using V = Vec<float>;
    using I = Lanes<float>::I;
    x = x < -87.0f ? splat(-87.0f) : x;  // a NaN compares false and stays
    const V n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const V r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    V p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const I shifted = (__builtin_convertvector(n, I) + 127) << 23;
    return p * *reinterpret_cast<const V*>(&shifted);
}

// gelu(h) = h Φ(h) and its slope Φ(h) + h φ(h). Φ after Abramowitz and Stegun 7.1.26 (|error| < 1e-7),
// which needs the same exponential as φ.
inline void gelu(Vec<float> h, Vec<float>& value, Vec<float>& slope) {
    using V = Vec<float>;
    const V positive = h < 0.0f ? -h : h;
    const V t = 1.0f / (1.0f + (0.3275911f * 0.70710678f) * positive);
    const V e = exponential(-0.5f * h * h);
    V p = 1.061405429f * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const V tail = 0.5f * p * t * e;
    const V cdf = h < 0.0f ? tail : 1.0f - tail;
    value = h * cdf;
    slope = cdf + h * e * 0.39894228f;
}

inline void gelu(Vec<double> h, Vec<double>& value, Vec<double>& slope) {
    for (int i = 0; i < W<double>; ++i) {
        const double cdf = 0.5 * std::erfc(-h[i] * M_SQRT1_2);
        value[i] = h[i] * cdf;
        slope[i] = cdf + h[i] * std::exp(-0.5 * h[i] * h[i]) * (0.5 * M_2_SQRTPI * M_SQRT1_2);
    }
}

// x̂ = (x − mean) / σ and 1/σ, for M rows.
template <class S> void normalise(i64 M, i64 D, const S* x, S* hat, S* inv) {
    for (i64 r = 0; r < M; ++r, x += D, hat += D) {
        S sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 i = 0; i < D; ++i) sum += x[i];
        const S mean = sum / D;
#pragma omp simd reduction(+ : squares)
        for (i64 i = 0; i < D; ++i) squares += (x[i] - mean) * (x[i] - mean);
        const S scale = 1 / std::sqrt(squares / D + S(EPS));
#pragma omp simd
        for (i64 i = 0; i < D; ++i) hat[i] = (x[i] - mean) * scale;
        inv[r] = scale;
    }
}

// dx += (dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ
template <class S> void normalise_backward(i64 M, i64 D, const S* dhat, const S* hat, const S* inv, S* dx) {
    for (i64 r = 0; r < M; ++r, dhat += D, hat += D, dx += D) {
        S sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
        for (i64 i = 0; i < D; ++i) {
            sum += dhat[i];
            dot += dhat[i] * hat[i];
        }
        const S mean = sum / D, share = dot / D, scale = inv[r];
#pragma omp simd
        for (i64 i = 0; i < D; ++i) dx[i] += (dhat[i] - mean - hat[i] * share) * scale;
    }
}

// a = 1 / (1 + e^-s), H numbers.
inline void sigmoid(i64 H, const float* s, float* a) {
    for (i64 h = 0; h < H; h += W<float>) {
        const i64 count = std::min<i64>(W<float>, H - h);
        Vec<float> x{};
        if (count == W<float>) x = load(s + h);
        else std::memcpy(&x, s + h, count * sizeof(float));
        const Vec<float> e = exponential(x < 0.0f ? x : -x), whole = 1.0f + e, weight = (x < 0.0f ? e : 1.0f - Vec<float>{}) / whole;
        if (count == W<float>) store(a + h, weight);
        else std::memcpy(a + h, &weight, count * sizeof(float));
    }
}

inline void sigmoid(i64 H, const double* s, double* a) {
    for (i64 h = 0; h < H; ++h) a[h] = 1 / (1 + std::exp(-s[h]));
}

// Heads of K numbers, K known when this is compiled: the sum over each head, (D) -> (H), and back, (H) -> (D).
template <int K, class S> inline void sum_heads(i64 H, const S* __restrict x, S* __restrict sums) {
    for (i64 h = 0; h < H; ++h) {
        S sum = x[h * K];
#pragma GCC unroll 4
        for (int i = 1; i < K; ++i) sum += x[h * K + i];
        sums[h] = sum;
    }
}

template <int K, class S> inline void spread_heads(i64 H, const S* __restrict x, S* __restrict wide) {
    for (i64 h = 0; h < H; ++h)
#pragma GCC unroll 4
        for (int i = 0; i < K; ++i) wide[h * K + i] = x[h];
}

// `read` for heads of few numbers: its loops run over all heads of a row, since one head does not fill a vector.
template <int K, class S>
void read_narrow(i64 M, i64 D, i64 H, const S* qkv, const S* kvo, i64 ldo, S* a, S* y) {
    const S root = 1 / std::sqrt(S(K));
    std::vector<S> scratch(2 * D);
    S *__restrict wide = scratch.data(), *__restrict scores = wide + D;
    for (i64 r = 0; r < M; ++r, qkv += 3 * D, kvo += ldo, y += D, a += H) {
        const S *q = qkv, *k = q + D, *v = q + 2 * D, *ko = kvo, *vo = ko + D;
        for (i64 i = 0; i < D; ++i) wide[i] = q[i] * (ko[i] - k[i]) * root;
        sum_heads<K>(H, wide, scores);
        sigmoid(H, scores, a);
        spread_heads<K>(H, a, wide);
#pragma omp simd
        for (i64 i = 0; i < D; ++i) y[i] = v[i] + wide[i] * (vo[i] - v[i]);
    }
}

template <int K, class S>
void read_backward_narrow(i64 M, i64 D, i64 H, const S* dy, const S* a, S* qkv, S* kvo, i64 ldo, S* sums) {
    const S root = 1 / std::sqrt(S(K));
    std::vector<S> scratch(3 * D);
    S *__restrict wide = scratch.data(), *__restrict weight = wide + D, *__restrict ds = weight + D;
    for (i64 r = 0; r < M; ++r, qkv += 3 * D, kvo += ldo, dy += D, a += H) {
        S *q = qkv, *k = q + D, *v = q + 2 * D, *ko = kvo, *vo = ko + D, *sq = sums, *sv = sums + 2 * D;
        for (i64 i = 0; i < D; ++i) wide[i] = dy[i] * (vo[i] - v[i]);
        sum_heads<K>(H, wide, ds);
        for (i64 h = 0; h < H; ++h) ds[h] *= a[h] * (1 - a[h]) * root;
        spread_heads<K>(H, ds, wide);
        spread_heads<K>(H, a, weight);
#pragma omp simd
        for (i64 i = 0; i < D; ++i) {
            const S dq = wide[i] * (ko[i] - k[i]), dko = wide[i] * q[i], dvo = weight[i] * dy[i];
            q[i] = dq;
            k[i] = -dko;
            ko[i] = dko;
            v[i] = dy[i] - dvo;
            vo[i] = dvo;
            sq[i] += dq;
            sv[i] += dy[i];
        }
    }
}

// a = σ(q·(kᵒ − k)/√K) per head, y = v + a (vᵒ − v)
template <class S>
void read(i64 M, i64 D, i64 H, const S* qkv, const S* kvo, i64 ldo, S* a, S* y) {
    const i64 K = D / H;
    switch (K) {
        case 1: return read_narrow<1>(M, D, H, qkv, kvo, ldo, a, y);
        case 2: return read_narrow<2>(M, D, H, qkv, kvo, ldo, a, y);
        case 4: return read_narrow<4>(M, D, H, qkv, kvo, ldo, a, y);
    }
    const S root = 1 / std::sqrt(S(K));
    for (i64 r = 0; r < M; ++r, qkv += 3 * D, kvo += ldo, y += D) {
        for (i64 h = 0; h < H; ++h) {
            const S *q = qkv + h * K, *k = q + D, *v = q + 2 * D, *ko = kvo + h * K, *vo = ko + D;
            S s = 0;
#pragma omp simd reduction(+ : s)
            for (i64 i = 0; i < K; ++i) s += q[i] * (ko[i] - k[i]);
            const S weight = 1 / (1 + std::exp(-s * root));
            *a++ = weight;
#pragma omp simd
            for (i64 i = 0; i < K; ++i) y[h * K + i] = v[i] + weight * (vo[i] - v[i]);
        }
    }
}

// The read-path operator and the token's side of it; gradients overwrite q, k, v, kᵒ, vᵒ.
template <class S>
void read_backward(i64 M, i64 D, i64 H, const S* dy, const S* a, S* qkv, S* kvo, i64 ldo, S* sums) {
    const i64 K = D / H;
    switch (K) {
        case 1: return read_backward_narrow<1>(M, D, H, dy, a, qkv, kvo, ldo, sums);
        case 2: return read_backward_narrow<2>(M, D, H, dy, a, qkv, kvo, ldo, sums);
        case 4: return read_backward_narrow<4>(M, D, H, dy, a, qkv, kvo, ldo, sums);
    }
    const S root = 1 / std::sqrt(S(K));
    for (i64 r = 0; r < M; ++r, qkv += 3 * D, kvo += ldo, dy += D) {
        for (i64 h = 0; h < H; ++h) {
            S *q = qkv + h * K, *k = q + D, *v = q + 2 * D, *ko = kvo + h * K, *vo = ko + D;
            S *sq = sums + h * K, *sv = sq + 2 * D;
            const S* d = dy + h * K;
            S dot = 0;
#pragma omp simd reduction(+ : dot)
            for (i64 i = 0; i < K; ++i) dot += d[i] * (vo[i] - v[i]);
            const S weight = *a++, ds = weight * (1 - weight) * dot * root;
#pragma omp simd
            for (i64 i = 0; i < K; ++i) {
                const S dq = ds * (ko[i] - k[i]), dko = ds * q[i], dvo = weight * d[i];
                q[i] = dq;
                k[i] = -dko;
                ko[i] = dko;
                v[i] = d[i] - dvo;
                vo[i] = dvo;
                sq[i] += dq;  // dk + dkᵒ = 0, dv + dvᵒ = dy
                sv[i] += d[i];
            }
        }
    }
}

template <class S> void add_rows(i64 M, i64 D, const S* x, S* sum) {
    for (i64 r = 0; r < M; ++r, x += D)
#pragma omp simd
        for (i64 i = 0; i < D; ++i) sum[i] += x[i];
}

// ---------------------------------------------------------------- the two loops

template <class S> void forward_rows(const Args<S>& p, i64 b0, i64 M) {
    const i64 B = p.B, T = p.T, D = p.D, L = p.L, H = p.H, F = 4 * D;
    const i64 wide = panels<S>(D) * NR<S> * D, wide2 = panels<S>(2 * D) * NR<S> * D, wide4 = panels<S>(F) * NR<S> * D;
    const i64 pd = NR<S> * D, pf = NR<S> * F;
    std::vector<S> x(M * D), o(p.ocean0 + b0 * D, p.ocean0 + (b0 + M) * D);
    for (i64 t = 0; t < T; ++t) {
        if (p.reset)
            for (i64 r = 0; r < M; ++r)
                if (p.reset[t * B + b0 + r]) std::fill_n(&o[r * D], D, S(0));
        const i64 at = (p.keep ? t * B : 0) + b0;
        S *ohat = p.ohat + at * D, *kvo = p.kvo + at * L * 2 * D;
        normalise(M, D, o.data(), ohat, p.oinv + at);
        for (i64 l = 0; l < L; ++l)
            multiply<S, false>(M, D, 2 * D, ohat, D, p.wkv + l * wide2, pd, kvo + l * 2 * D, L * 2 * D, p.bqkv + l * 3 * D + D);
        std::memcpy(x.data(), p.x0 + (t * B + b0) * D, M * D * sizeof(S));
        for (i64 l = 0; l < L; ++l) {
            const i64 slot = (p.keep ? (l * T + t) * B : 0) + b0;
            const S* qkv = p.qkv0 + (t * B + b0) * 3 * D;
            if (l > 0) {
                const i64 before = p.keep ? slot - T * B : b0;
                S *hat = p.hat1 + before * D, *out = p.qkv + before * 3 * D;
                normalise(M, D, x.data(), hat, p.inv1 + before);
                multiply<S, false>(M, D, D, hat, D, p.wq + l * wide, pd, out, 3 * D, p.bqkv + l * 3 * D);
                multiply<S, false>(M, D, 2 * D, hat, D, p.wkv + l * wide2, pd, out + D, 3 * D, p.bqkv + l * 3 * D + D);
                qkv = out;
            }
            read(M, D, H, qkv, kvo + l * 2 * D, L * 2 * D, p.a + slot * H, p.y + slot * D);
            multiply<S, true>(M, D, D, p.y + slot * D, D, p.wo + l * wide, pd, x.data(), D, nullptr);
            normalise(M, D, x.data(), p.hat2 + slot * D, p.inv2 + slot);
            S *g = p.g + slot * F, *slope = p.slope + slot * F;
            const S* b1 = p.b1 + l * F;
            product<S>(M, D, F, p.hat2 + slot * D, D, p.w1 + l * wide4, pd, [=](i64 row, i64 j, i64 count, Vec<S> c0, Vec<S> c1) {
                Vec<S> u{}, v{}, s0{}, s1{};
                get(b1 + j, count, u, v);
                gelu(c0 + u, u, s0);
                gelu(c1 + v, v, s1);
                put(g + row * F + j, count, u, v);
                put(slope + row * F + j, count, s0, s1);
            });
            multiply<S, true>(M, F, D, g, F, p.w2 + l * panels<S>(D) * pf, pf, x.data(), D, p.b2 + l * D);
        }
        for (i64 r = 0; r < M; ++r) {
            S *now = &o[r * D], *out = &x[r * D];
            if (p.change) {
                S* change = p.change + (t * B + b0 + r) * D;
                for (i64 i = 0; i < D; ++i) change[i] = now[i] - out[i];
            }
            if (!p.valid || p.valid[t * B + b0 + r]) {
                if (p.decay)
                    for (i64 i = 0; i < D; ++i) now[i] = p.decay[i] * now[i] + p.rest[i] * out[i];
                else
                    std::memcpy(now, out, D * sizeof(S));
            }
            std::memcpy(p.oceans + ((b0 + r) * T + t) * D, &o[r * D], D * sizeof(S));
        }
    }
}

template <class S> void backward_rows(const Args<S>& p, i64 b0, i64 M, S* sums) {
    const i64 B = p.B, T = p.T, D = p.D, L = p.L, H = p.H, F = 4 * D;
    const i64 pd = NR<S> * D, pf = NR<S> * F, pn = panels<S>(D);
    std::vector<S> dx(M * D), d(M * D), d_ocean(M * D), dm(M * D);
    for (i64 t = T - 1; t >= 0; --t) {
        const i64 at = t * B + b0;
        for (i64 r = 0; r < M; ++r) {
            const S* from = p.d_oceans + ((b0 + r) * T + t) * D;
            const bool live = !p.valid || p.valid[at + r];
            S *d_now = &d_ocean[r * D], *d_out = &dx[r * D];
            for (i64 i = 0; i < D; ++i) {
                d_now[i] += from[i];
                d_out[i] = live ? d_now[i] : S(0);
            }
            if (p.change) {
                const S* change = p.change + (at + r) * D;
                for (i64 i = 0; i < D; ++i) sums[L * 8 * D + i] += d_out[i] * change[i];
            }
            if (p.decay)
                for (i64 i = 0; i < D; ++i) d_out[i] *= p.rest[i];
        }
        std::fill(dm.begin(), dm.end(), S(0));
        for (i64 l = L - 1; l >= 0; --l) {
            const i64 slot = (l * T + t) * B + b0;
            S *sum = sums + l * 8 * D, *slope = p.slope + slot * F;
            std::memcpy(p.dout + slot * D, dx.data(), M * D * sizeof(S));
            add_rows(M, D, dx.data(), sum + 7 * D);
            product<S>(M, D, F, dx.data(), D, p.w2t + l * panels<S>(F) * pd, pd, [=](i64 row, i64 j, i64 count, Vec<S> c0, Vec<S> c1) {
                Vec<S> u, v;
                get(slope + row * F + j, count, u, v);
                c0 *= u;
                c1 *= v;
                put(slope + row * F + j, count, c0, c1);
                get(sum + 3 * D + j, count, u, v);
                put(sum + 3 * D + j, count, u + c0, v + c1);
            });
            multiply<S, false>(M, F, D, slope, F, p.w1t + l * pn * pf, pf, d.data(), D, nullptr);
            normalise_backward(M, D, d.data(), p.hat2 + slot * D, p.inv2 + slot, dx.data());
            std::memcpy(p.dmid + slot * D, dx.data(), M * D * sizeof(S));
            multiply<S, false>(M, D, D, dx.data(), D, p.wot + l * pn * pd, pd, d.data(), D, nullptr);
            const i64 before = slot - T * B;
            S *qkv = l > 0 ? p.qkv + before * 3 * D : p.dqkv0 + at * 3 * D, *kvo = p.kvo + (at * L + l) * 2 * D;
            read_backward(M, D, H, d.data(), p.a + slot * H, qkv, kvo, L * 2 * D, sum);
            const S* wqkvt = p.wqkvt + l * pn * 3 * pd;
            if (l > 0) {
                multiply<S, false>(M, 3 * D, D, qkv, 3 * D, wqkvt, 3 * pd, d.data(), D, nullptr);
                normalise_backward(M, D, d.data(), p.hat1 + before * D, p.inv1 + before, dx.data());
            }
            multiply<S, true>(M, 2 * D, D, kvo, L * 2 * D, wqkvt + pd, 3 * pd, dm.data(), D, nullptr);
        }
        std::memcpy(p.dx0 + at * D, dx.data(), M * D * sizeof(S));
        // A frozen row passes its gradient on untouched; a live one its leaking share, and what the tokens read.
        for (i64 r = 0; r < M; ++r) {
            if (p.valid && !p.valid[at + r]) continue;
            S* d_now = &d_ocean[r * D];
            for (i64 i = 0; i < D; ++i) d_now[i] = p.decay ? p.decay[i] * d_now[i] : S(0);
        }
        normalise_backward(M, D, dm.data(), p.ohat + at * D, p.oinv + at, d_ocean.data());
        if (p.reset)
            for (i64 r = 0; r < M; ++r)
                if (p.reset[at + r]) std::fill_n(&d_ocean[r * D], D, S(0));
    }
    std::memcpy(p.d_ocean0 + b0 * D, d_ocean.data(), M * D * sizeof(S));
}

template <class S> void forward(const Args<S>& p) {
#pragma omp parallel for num_threads(p.threads) schedule(static)
    for (i64 i = 0; i < p.blocks; ++i) {
        const i64 b0 = p.B * i / p.blocks;
        forward_rows(p, b0, p.B * (i + 1) / p.blocks - b0);
    }
}

template <class S> void backward(const Args<S>& p) {
#pragma omp parallel for num_threads(p.threads) schedule(static)
    for (i64 i = 0; i < p.blocks; ++i) {
        const i64 b0 = p.B * i / p.blocks;
        backward_rows(p, b0, p.B * (i + 1) / p.blocks - b0, p.sums + i * (p.L * 8 * p.D + p.D));
    }
}

// (k x n) with strides (sk, sn) -> panels of NR columns, each k x NR, the last one padded with zeros.
template <class S> void pack(S* to, const S* from, i64 k, i64 n, i64 sk, i64 sn) {
    for (i64 j = 0; j < n; j += NR<S>) {
        const i64 count = std::min<i64>(NR<S>, n - j);
        for (i64 i = 0; i < k; ++i, to += NR<S>)
            for (i64 c = 0; c < NR<S>; ++c) to[c] = c < count ? from[i * sk + (j + c) * sn] : S(0);
    }
}

}  // namespace

extern "C" {
i64 ocean_block() { return BLOCK; }
i64 ocean_packed_f32(i64 k, i64 n) { return panels<float>(n) * NR<float> * k; }
i64 ocean_packed_f64(i64 k, i64 n) { return panels<double>(n) * NR<double> * k; }
void ocean_pack_f32(float* to, const float* from, i64 k, i64 n, i64 sk, i64 sn) { pack(to, from, k, n, sk, sn); }
void ocean_pack_f64(double* to, const double* from, i64 k, i64 n, i64 sk, i64 sn) { pack(to, from, k, n, sk, sn); }
void ocean_forward_f32(const Args<float>* p) { forward(*p); }
void ocean_forward_f64(const Args<double>* p) { forward(*p); }
void ocean_backward_f32(const Args<float>* p) { backward(*p); }
void ocean_backward_f64(const Args<double>* p) { backward(*p); }
}
