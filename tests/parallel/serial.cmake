# Read by ctest: what measures time has the machine to itself.
set_tests_properties(PipelineRun.TakesTheSimulatedTime PROPERTIES RUN_SERIAL ON)
