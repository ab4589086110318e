"""The road of the data, from sealed groups to arrays on devices, in four stages: choosing, reading,
packing and prefetching.

`batches`   step and schedule -> the step's groups by folder and number, which it reads; arrays on
            the devices, the next step's prepared in advance
`pack`      groups -> arrays of the run's fixed batch shape

Beside them: `sources` opens the folders once a run, and selects and checks their groups; `plan`
defines how old the data is, and refills positions without signal.
"""
