"""The road of the data, from sealed groups to arrays on devices, in four stages.

`choose`    step and schedule -> the step's groups by folder and number; `choose.read`: those ->
            groups in the policy's own tokens, within the limits
`pack`      groups -> arrays of the run's fixed batch shape
`prefetch`  arrays on the devices, the next step's prepared in advance

Beside them: `sources` opens and selects the folders once a run, `regime` and `schedule` define how
old the data is, `dynamic_sampling` refills positions without signal, and `checks` refuses data that
a run cannot learn from.
"""
