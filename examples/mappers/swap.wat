;; A mapper that makes an index: each pair is stored under its value, with its key as the value.
;; Pairs with an empty value are left out, as no key may be empty (docs/guides/mapper.md).
(module
  (memory (export "memory") 2)
  (global $free (mut i32) (i32.const 0))    ;; Where the output begins: behind the input.
  (global $input (mut i32) (i32.const 1024))

  ;; Room for one batch and for what is made of it: at most 9 bytes for each 8 of its head.
  (func (export "kelek_alloc") (param $size i32) (result i32)
    (local $need i32)
    (local.set $need
      (i32.add (i32.const 2048) (i32.mul (local.get $size) (i32.const 3))))
    (block $enough
      (br_if $enough
        (i32.le_u (local.get $need) (i32.mul (memory.size) (i32.const 65536))))
      (if (i32.eq (i32.const -1) (memory.grow (i32.div_u (local.get $need) (i32.const 65536))))
        (then (return (i32.const 0)))))
    (global.get $input))

  (func (export "kelek_output") (result i32) (global.get $free))

  (func (export "kelek_map") (param $at i32) (param $size i32) (result i32)
    (local $end i32) (local $out i32) (local $key i32) (local $value i32)
    (local.set $end (i32.add (local.get $at) (local.get $size)))
    (global.set $free (local.get $end))
    (local.set $out (local.get $end))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (local.set $key (i32.load (local.get $at)))
        (local.set $value (i32.load offset=4 (local.get $at)))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (if (local.get $value)
          (then
            (i32.store8 (local.get $out) (i32.const 0))
            (i32.store offset=1 (local.get $out) (local.get $value))
            (i32.store offset=5 (local.get $out) (local.get $key))
            (local.set $out (i32.add (local.get $out) (i32.const 9)))
            (memory.copy
              (local.get $out)
              (i32.add (local.get $at) (local.get $key))
              (local.get $value))
            (local.set $out (i32.add (local.get $out) (local.get $value)))
            (memory.copy (local.get $out) (local.get $at) (local.get $key))
            (local.set $out (i32.add (local.get $out) (local.get $key)))))
        (local.set $at (i32.add (local.get $at) (i32.add (local.get $key) (local.get $value))))
        (br $next)))
    (i32.sub (local.get $out) (global.get $free))))
