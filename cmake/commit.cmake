# Run at every build: writes OUTPUT with the commit of SOURCE, touching it only when it changed.
#   cmake -DSOURCE=… -DOUTPUT=… -P commit.cmake
set(commit unknown)
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE head RESULT_VARIABLE failed ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed)
    execute_process(COMMAND ${git} -C ${SOURCE} status --porcelain --untracked-files=no
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    set(commit ${head})
    if(changes)
      string(APPEND commit "+")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define LT2_COMMIT \"@commit@\"\n" @ONLY)
